"""Parser of multi-speaker scripts for dialogues, books and subtitles."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..core.config import MAX_NAMES
from ..core.errors import HiggsError, few, shown, shown_name
from .names import NAME, Form, ParsedLine, Start, is_loud, is_said, parse, speaker_key
from .script import Turn, is_comment
from .tags import every_tag, stage_directions
from .turn_settings import TurnSettings, manner_leads, settings_of

_NAMED = re.compile(NAME)
_LISTED = 8  # maximum names in a message
_ASIDE = re.compile(r"\(([^()]{1,60})\)")  # (softly), on the line below a name
# Unlikely start of a line of prose: few words, then a sign that does not end a sentence.
_LIKE_NAME = re.compile(r"(?!.*-->)[\W\d_]{0,14}[^\W\d_][\w.,'’ -]{0,30}(?:\t|[\])}>|:;=~](?:[\])}>]|\s))")


@dataclass(frozen=True)
class Dialogue:
    """A script's turns, and the voices declared in its head: speaker -> text after the =."""

    turns: tuple[Turn, ...]
    head: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def speakers(self) -> list[str]:
        """Speakers in order of appearance."""
        return list(dict.fromkeys(turn.speaker for turn in self.turns))


def read_dialogue(script: str, known: Iterable[str] = (), knows_tag: Callable[[str], bool] = every_tag) -> Dialogue:
    """Parse a script for several speakers.

    `Name: text`, `[Name] text` or `[Name]` on its own line begin a turn, as do other notations (names.py).
    `[Name|seed:24|speed:fast|volume:-6dB]` adds settings, `Name (whispering): text` a manner. If any voice is declared,
    only names with a voice begin turns. Otherwise these names do: names that recur, and several names if every line or
    paragraph but the first begins with one. `Name = voice` lines at the head declare voices, lines that begin with #
    are comments, and \\# is a literal #. Speaker 1, [S1], [Speaker_1] and [1] are the same name. The warnings list
    ambiguous lines.

    Args:
        script: The whole text.
        known: Names with a voice in addition to those declared in the head.
        knows_tag: True if the model follows a control tag. Manners become tags only then.

    Raises:
        HiggsError: A name without a voice recurs while others have one.
    """
    head, lines = read_head(script.splitlines())
    parsed = parse(lines)
    reader = DialogueReader([parsed], [*known, *head], knows_tag=knows_tag)
    turns = reader.turns(parsed)
    told = [*few(reader.warnings), *reader.doubts(turns), *heads_unused(head, turns)]
    headings = [line.strip("# ") for line in script.splitlines() if line.lstrip().startswith("##")]
    if sum(len(line) <= 80 and _NAMED.fullmatch(line) is not None for line in headings) > 1:
        told.append(f"Lines that start with # are comments, so {shown(headings[0])} was not read as a name.")
    return Dialogue(tuple(turns), head, tuple(told))


def script_names(script: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (voices declared in the head of a script, possible speaker names)."""
    head, lines = read_head(script.splitlines())
    return head, DialogueReader([parse(lines)]).found_names


def read_head(lines: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return (voices declared in the first lines, other lines), without comments."""
    lines, head = [line for line in lines if not is_comment(line)], {}
    for at, line in enumerate(lines):
        name, _, voice = (part.strip() for part in line.partition("="))
        if voice and len(name) <= 80 and _NAMED.fullmatch(name):
            head[name] = voice
        elif line.strip():
            return head, lines[at:]
    return head, []


def heads_unused(head: Iterable[str], turns: Iterable[Turn]) -> list[str]:
    """Return a warning if the head declares voices that no turn uses."""
    speaking = {speaker_key(turn.speaker) for turn in turns}
    unused = [name for name in head if speaker_key(name) not in speaking]
    return [f"{listed(unused)} {_has(unused)} a voice at the top of the script but no lines."] if unused else []


def listed(names: Sequence[str]) -> str:
    """Format names as "Anna, Tom and 3 more"."""
    some = _some(names)
    return " and ".join(filter(None, (", ".join(some[:-1]), some[-1])))


class DialogueReader:
    """Reads one script. The constructor decides which names begin turns; `turns` may add warnings.

    parts: parsed lines without comments and head, in one part; or one part per cue, and then a cue counts as a line.
    known: names with a voice. named: other names that begin a turn. anyone: apply the rule for scripts without voices
    as well.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[ParsedLine]],
        known: Iterable[str] = (),
        named: Iterable[str] = (),
        anyone: bool = False,
        are_cues: bool = False,
        knows_tag: Callable[[str], bool] = every_tag,
    ):
        self.warnings: list[str] = []
        self._knows_tag = knows_tag
        self._names = {speaker_key(name): name for name in known if name}
        self._voices = bool(self._names) and not anyone
        self._known = frozenset(self._names)
        self._lines = [line for part in parts for line in part if not line.is_neutral]
        self._units = [parts] if are_cues else [[[line] for line in self._lines], _paragraphs(parts)]
        self._forms = {Form.COLON, Form.BRACKET} | self._weak_forms(are_cues)
        self.found = [start for _, start, _ in self._lines if start and self._is_candidate(start)]
        self._counts = Counter(start.key for start in self.found)
        self._unknown: dict[str, str] = {}  # names read as text, by key
        self._unnamed: list[tuple[str, str]] = []  # screenplay paragraphs without a name, and their speakers
        for name in named:
            self._names.setdefault(speaker_key(name), name)
        if not self._voices:
            # Brackets in a cue may describe a sound.
            forms = self._forms - ({Form.BRACKET} if are_cues else set())
            is_all = any(_are_named(units, forms) for units in self._units)
            at_top = self._at_top(forms)
            for start in self.found:
                is_name = (is_all and start.form in forms) or start.key in at_top or self._counts[start.key] > 1
                (self._names if is_name else self._unknown).setdefault(start.key, start.name)
            self._unknown = {key: name for key, name in self._unknown.items() if key not in self._names}

    @property
    def found_names(self) -> tuple[str, ...]:
        """Possible speaker names, at most MAX_NAMES."""
        return tuple(dict.fromkeys(start.name for start in self.found))[:MAX_NAMES]

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the names that begin a turn."""
        return frozenset(self._names)

    def turns(self, lines: Iterable[ParsedLine], speaker: str = "") -> list[Turn]:
        """Return the turns of some lines. speaker: of text before the first name. Raises as `read_dialogue`."""
        turns, settings, said, name = [], TurnSettings(), [], None

        def end():
            if text := "\n".join(said).replace("\\#", "#").strip():
                turns.append(Turn(speaker, "".join(settings.leads) + text, settings.seed, settings.volume))

        for line, start, is_neutral in lines:
            is_after_gap = len(said) > 1 and not said[-1].strip()
            if start is not None and self._is_candidate(start) and self._begins_turn(start):
                end()
                speaker, name, said = self._names[start.key], start, [start.text]
                settings = settings_of(start, self._knows_tag, self.warnings)
            elif name and name.form is Form.ALONE and said == [""] and (aside := _ASIDE.fullmatch(line.strip())):
                settings.leads += manner_leads(aside[1], name.name, self._knows_tag, self.warnings)
                said = []
            else:
                if name and name.form is Form.ALONE and is_after_gap and not is_neutral:
                    self._unnamed.append((line.strip(), name.name))
                said.append(line)
        end()
        return turns

    def doubts(self, turns: Iterable[Turn]) -> list[str]:
        """Return a warning per ambiguity."""
        speakers = {speaker_key(turn.speaker): turn.speaker for turn in turns if turn.speaker}
        if not speakers and (told := self._said_as_text(2)):
            return told
        if not speakers:
            return [_NO_SPEAKER] if self._looks_like_script() else []
        doubts = []
        unknown = [] if self._voices else [name for name in self._unknown.values() if not name[0].islower()]
        if unknown:
            why = "because only one line starts this way. If it is a name, start every line with a name."
            doubts.append(f"{listed(unknown)} {_was(unknown)} read as text, {why}")
        once = [name for key, name in speakers.items() if self._counts[key] == 1 and key not in self._known]
        if once:
            each = " each" if len(once) > 1 else ""
            doubts.append(f"{listed(once)} {_has(once)} only one line{each}. If that is a mistake, correct the script.")
        doubts += self._said_as_text(1)
        if alike := [line for line, start, _ in self._lines if start is None and self._is_like_name(line)]:
            doubts.append(
                f"{shown(alike[0].strip())} was read as text, because it does not start with a name and a colon."
            )
        if self._unnamed:
            line, speaker = self._unnamed[0]
            doubts.append(f"{shown(line)} has no name above it, so {speaker}, who spoke last, speaks it.")
        return doubts

    def _said_as_text(self, least: int) -> list[str]:
        """Return a warning if at least so many lines begin like names with words such as Note."""
        starts = [start for _, start, _ in self._lines if start and self._is_said(start)]
        names = list(dict.fromkeys(start.name for start in starts))
        if len(starts) < least:
            return []
        return [
            f"{listed(names)} {_was(names)} read as text, not as a speaker. If that is wrong, give the name a voice."
        ]

    def _is_said(self, start: Start) -> bool:
        return start.form is Form.COLON and start.key not in self._names and is_said(start.name)

    def _weak_forms(self, are_cues: bool) -> set[Form]:
        """Return the forms also found in prose, if other evidence marks them as names here."""
        if are_cues:
            return {form for form in (Form.DASH, Form.ALONE) if _are_named(self._units[0], {Form.COLON, form})}
        starts = [line.start for line in self._lines if line.start]
        alone = Counter(start.key for start in starts if self._may_be_alone(start))
        dashes = sum(start.form is Form.DASH for start in starts)
        beside = sum(start.form is not Form.ALONE for start in starts)
        is_top = any(start and is_loud(start) and not start.is_bold for _, start, _ in self._lines[:2])
        forms = {Form.DASH} if dashes > 1 and 2 * beside >= len(self._lines) else set()
        return forms | ({Form.ALONE} if max(alone.values(), default=0) > 1 or (is_top and len(alone) > 1) else set())

    def _may_be_alone(self, start: Start) -> bool:
        return start.form is Form.ALONE and (is_loud(start) or start.key in self._known)

    def _at_top(self, forms: set[Form]) -> set[str]:
        """Return the keys of names on their own lines, if there are several and the script begins with one."""
        own = [
            start if start and self._is_candidate(start) and not start.text and start.form in forms else None
            for _, start, _ in self._lines
        ]
        keys = {start.key for start in own if start}
        return keys if any(own[:2]) and len(keys) > 1 else set()

    def _is_candidate(self, start: Start) -> bool:
        """True if it may begin a turn in this script. [this|that] does not, unless "this" is a name."""
        if start.form not in self._forms or (start.form is Form.ALONE and not self._may_be_alone(start)):
            return False
        if self._is_said(start):
            return False
        return start.key in self._names or all(":" in setting for setting in start.settings)

    def _begins_turn(self, start: Start) -> bool:
        if start.key in self._names or not self._voices:
            return start.key in self._names
        if start.key in self._unknown:
            return False
        known = list(self._names.values())
        keys = list(self._names)[: MAX_NAMES if len(self._unknown) < _LISTED else 0]  # comparing is slow
        near = difflib.get_close_matches(start.key, keys, n=1, cutoff=0.7)
        nearest = f" Did you mean {self._names[near[0]]}?" if near else ""
        meant = f"Names with a voice: {', '.join(_some(known))}.{nearest}"
        if self._counts[start.key] > 1 and (start.name[0].isupper() or start.key.isdigit()):
            raise HiggsError(f"{start.name} has no voice. {meant} Give it a voice, or use one of these names.")
        self._unknown[start.key] = start.name
        self.warnings.append(f'"{start.name}" was read as text, because it has no voice. {meant}')
        return False

    def _is_like_name(self, line: str) -> bool:
        """True if a line begins with a speaker's name and has a colon later: "Anna, softly: Hello"."""
        before, colon, _ = line[:60].partition(":")
        words = re.findall(r"[\w'’&/-]+", before) if colon else []
        return len(words) < 5 and any(speaker_key(" ".join(words[:most])) in self._names for most in (1, 2, 3, 4))

    def _looks_like_script(self) -> bool:
        """True if at least half of the lines look as if they began with a name."""
        begins = [(start, line.strip()[:60]) for line, start, _ in self._lines]
        alike = sum(bool(start or (_LIKE_NAME.match(line) and not stage_directions(line))) for start, line in begins)
        is_sure = bool(self.found) or any(start and is_loud(start) for _, start, _ in self._lines)
        return 2 * alike >= len(self._lines) and (alike > 1 or is_sure)


_NO_SPEAKER = (
    "This looks like a script, but no speaker was found, so names are read aloud too. Start each line with a name and "
    'a colon, as in "Anna: Hello".'
)


def _are_named(units: Iterable[Sequence[ParsedLine]], forms: set[Form]) -> bool:
    """True if every unit but the first begins with a name, and there are several names."""
    said = [[line.start for line in unit if not line.is_neutral] for unit in units]
    firsts = [starts[0] if starts[0] and starts[0].form in forms else None for starts in said if starts]
    names = [start for start in firsts if start]
    is_all = None not in firsts[1:] and len({start.key for start in names}) > 1
    return is_all and not any(start.name[0].islower() for start in names)


def _paragraphs(parts: Iterable[Sequence[ParsedLine]]) -> list[list[ParsedLine]]:
    """Return paragraphs, separated by blank lines."""
    found: list[list[ParsedLine]] = [[]]
    for part in parts:
        for line in part:
            if line.text.strip():
                found[-1].append(line)
            elif found[-1]:
                found.append([])
    return found


def _some(names: Sequence[str]) -> list[str]:
    """Return the first names for a message, and the number of others."""
    more = [f"{len(names) - _LISTED:,} more"] if len(names) > _LISTED else []
    return [*map(shown_name, names[:_LISTED]), *more]


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
