"""Which lines of a script begin turns, and whose."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

from ..core.config import MAX_NAMES
from ..core.errors import LISTED, HiggsError, listed, shown, shown_name, some_of
from .directions import actions_in, begins_sentence, lead_of, pauses_in
from .names import Form, ParsedLine, Start, is_loud, is_said, speaker_key
from .script import Turn
from .tags import every_tag, is_spoken, manner_tags, stage_directions
from .turn_settings import TurnSettings, manner_leads, settings_of
from .wrapped import MARKS

_MOST_LEADS = 8  # directions before a turn's words
# A name and a sign that do not begin a turn: Tom. Yes. Tom --Yes.
_SIGNED = re.compile(
    rf"[\W\d_]{{0,6}}([^\W\d_][\w{MARKS}'’&]*(?: [\w{MARKS}'’&]+){{0,3}})[\"'”’»›*_]?"
    r"(?:\s--?|-?-\s|\s*[–—]|\.\s|\s*[#/\\•·+^»›])"
)
_DASHES = re.compile(r"\s(?:--?|[–—])\s")
# Unlikely start of a line of prose: few words, then a sign that does not end a sentence.
_LIKE_NAME = re.compile(
    rf"(?!.*-->)[\W\d_]{{0,14}}[^\W\d_][\w{MARKS}.,'’ -]{{0,30}}(?:\t|[\])}}>|:;=~](?:[\])}}>]|\s))"
)


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
        self.unsaid: list[tuple[int, int, int, str]] = []  # (line, start, stop, warning or "") of what is not spoken
        self._knows_tag, self._are_cues = knows_tag, are_cues
        self._names = {speaker_key(name): name for name in known if name}
        self._voices = bool(self._names) and not anyone
        self._known = frozenset(self._names)
        self._lines = [line for part in parts for line in part if not line.is_neutral]
        self._units = [parts] if are_cues else [[[line] for line in self._lines], _paragraphs(parts)]
        self._forms = {Form.COLON, Form.BRACKET} | self._weak_forms(are_cues)
        self.candidates = [line.start for line in self._lines if line.start and self._is_candidate(line.start)]
        own = {start.key for start in self.candidates}
        loose = [line.start for line in self._lines if line.start and line.start.form not in self._forms]
        self._counts = Counter(start.key for start in self.candidates)
        self._counts.update(start.key for start in loose if not self._voices and self._may_be_loose(start, own))
        self._unknown: dict[str, str] = {}  # names read as text, by key
        self._unnamed: list[tuple[str, str]] = []  # screenplay paragraphs without a name, and their speakers
        self._loose: list[str] = []  # lines without a colon that begin turns
        self._doubtful: list[str] = []  # lines read as text though they begin with a name
        self._directions: list[str] = []
        for name in named:
            self._names.setdefault(speaker_key(name), name)
        if not self._voices:
            # Brackets in a cue may describe a sound.
            forms = self._forms - ({Form.BRACKET} if are_cues else set())
            is_all = any(_are_named(units, forms) for units in self._units)
            at_top = self._at_top(forms)
            for start in self.candidates:
                is_name = (is_all and start.form in forms) or start.key in at_top or self._counts[start.key] > 1
                (self._names if is_name else self._unknown).setdefault(start.key, start.name)
            self._unknown = {key: name for key, name in self._unknown.items() if key not in self._names}
        self._is_script = not (are_cues or own.isdisjoint(self._names))

    @property
    def found_names(self) -> tuple[str, ...]:
        """Possible speaker names, at most MAX_NAMES."""
        return tuple(dict.fromkeys(start.name for start in self.candidates))[:MAX_NAMES]

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the names that begin a turn."""
        return frozenset(self._names)

    def turns(self, lines: Iterable[ParsedLine], speaker: str = "") -> list[Turn]:
        """Return the turns of some lines. speaker: of text before the first name. Raises as `read_dialogue`."""
        turns, settings, turn_lines, name = [], TurnSettings(), [], None

        def end():
            leads = "".join(settings.leads)
            if (text := "\n".join(turn_lines).replace("\\#", "#").strip()) or is_spoken(leads):
                turns.append(Turn(speaker, leads + text, settings.seed, settings.volume))

        for at, (line, start, is_neutral, is_direction) in enumerate(lines):
            is_after_gap = len(turn_lines) > 1 and not turn_lines[-1].strip()
            if start is not None and self._begins_turn(start, is_direction):
                end()
                speaker, name, warned = self._names[start.key], start, len(self.warnings)
                settings = settings_of(start, self._knows_tag, self.warnings)
                self.unsaid += [(at, 0, _place(start.text, line), says) for says in self.warnings[warned:] or [""]]
                turn_lines = [self._without_leads(at, line, start.text, start.name, settings.leads)]
                if start.form not in self._forms:
                    self._loose.append(line.strip())
            elif name and turn_lines == [""] and (lead_of(line.strip())[0]) and not self._are_cues:
                turn_lines = [self._without_leads(at, line, line.strip(), name.name, settings.leads)]
            elif is_direction and self._is_script:
                self._leave_out(at, line.find(line.strip()), line.strip())
                turn_lines += filter(None, [pauses_in(line)])
                if start:
                    self._unknown.pop(start.key, None)
            else:
                if name and name.form is Form.ALONE and is_after_gap and not is_neutral:
                    self._unnamed.append((line.strip(), name.name))
                if self._is_like_name(line, start) and not is_neutral:
                    self._doubtful.append(line.strip())
                turn_lines.append(self._without_actions(at, line, line))
        end()
        return turns

    def _without_leads(self, at: int, line: str, text: str, name: str, leads: list[str]) -> str:
        """Return the text of a turn without the directions in it. Adds the tags for its manners to `leads`."""
        for _ in range(0 if self._are_cues else _MOST_LEADS):
            direction, inside, rest = lead_of(text)
            if not direction:
                break
            start, tags, warned = _place(text, line), manner_tags(inside), len(self.warnings)
            if any(tags.values()) or not tags:
                leads += manner_leads(inside, name, self._knows_tag, self.warnings)
                self.unsaid += [(at, start, start + len(direction), says) for says in self.warnings[warned:] or [""]]
                if any(" " in part.lower().removeprefix("very ") for part in tags):  # (Fast food) is more than a tag
                    self._directions.append(direction)
            else:
                self._leave_out(at, start, direction)
            text = rest
        return self._without_actions(at, line, text)

    def _without_actions(self, at: int, line: str, text: str) -> str:
        kept, end, place = [], 0, _place(text, line)
        for start, stop in actions_in(text, self._is_name) if self._is_script else ():
            self._leave_out(at, place + start, text[start:stop])
            kept.append(text[end:start])
            end = stop
        return "".join([*kept, text[end:]])

    def _is_name(self, word: str) -> bool:
        return speaker_key(word) in self._names and not word.isdigit()

    def _leave_out(self, at: int, start: int, direction: str) -> None:
        self.unsaid.append(
            (at, start, start + len(direction), f'"{shown_name(direction)}" is not spoken: it is a stage direction.')
        )
        if self._directions and self._directions[-1].count("(") > self._directions[-1].count(")"):  # of several lines
            direction = f"{self._directions.pop()} {direction}"
        self._directions.append(direction)

    def doubts(self, turns: Iterable[Turn]) -> list[str]:
        """Return a warning per ambiguity."""
        speakers = {speaker_key(turn.speaker): turn.speaker for turn in turns if turn.speaker}
        if not speakers and (warnings := self._said_as_text(2)):
            return warnings
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
            doubts.append(f"{listed(once)} {has(once)} only one line{each}. If that is a mistake, correct the script.")
        doubts += self._said_as_text(1)
        if self._doubtful:
            lines = listed(list(map(shown, dict.fromkeys(self._doubtful))))
            do = "it does" if len(self._doubtful) == 1 else "they do"
            was = _was(self._doubtful)
            doubts.append(f"{lines} {was} read as text, because {do} not start with a name and a colon.")
        if self._loose:
            lines = listed(list(map(shown, dict.fromkeys(self._loose))))
            doubts.append(
                f"Read as turns, though they have no colon: {lines}. If one is wrong, begin it with another word."
            )
        if self._directions:
            directions = listed(list(dict.fromkeys(self._directions)))
            doubts.append(
                f"Stage directions were not spoken: {directions}. To have them spoken, write them without brackets or "
                "asterisks."
            )
        if self._unnamed:
            line, speaker = self._unnamed[0]
            doubts.append(f"{shown(line)} has no name above it, so {speaker}, who spoke last, speaks it.")
        return doubts

    def _said_as_text(self, least: int) -> list[str]:
        """Return a warning if at least so many lines begin like names with words such as Note."""
        starts = [start for _, start, *_ in self._lines if start and self._is_said(start)]
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
        beside = sum(start.form not in (Form.ALONE, Form.LOOSE) for start in starts)
        is_top = any(start and is_loud(start) and not start.is_bold for _, start, *_ in self._lines[:2])
        forms = {Form.DASH} if dashes > 1 and 2 * beside >= len(self._lines) else set()
        return forms | ({Form.ALONE} if max(alone.values(), default=0) > 1 or (is_top and len(alone) > 1) else set())

    def _may_be_alone(self, start: Start) -> bool:
        return start.form is Form.ALONE and (is_loud(start) or start.key in self._known)

    def _at_top(self, forms: set[Form]) -> set[str]:
        """Return the keys of names on their own lines, if there are several and the script begins with one."""
        own = [
            start if start and self._is_candidate(start) and not start.text and start.form in forms else None
            for _, start, *_ in self._lines
        ]
        keys = {start.key for start in own if start}
        return keys if any(own[:2]) and len(keys) > 1 else set()

    def _is_candidate(self, start: Start) -> bool:
        """True if it may begin a turn in this script. [this|that] does not, unless "this" is a name."""
        if start.form not in self._forms or (start.form is Form.ALONE and not self._may_be_alone(start)):
            return self._may_be_loose(start, self._names)
        if self._is_said(start):
            return False
        return start.key in self._names or all(":" in setting for setting in start.settings)

    def _may_be_loose(self, start: Start, keys: Container[str]) -> bool:
        """True if a line without a colon may begin a turn of a speaker, one of `keys`, in a script with colons."""
        is_dash, is_loud_line = start.form is Form.DASH, is_loud(start) or not (start.text or start.form is Form.ALONE)
        is_form = is_loud_line if self._are_cues else is_dash or start.form in (Form.ALONE, Form.LOOSE)
        is_name = is_form and start.key in keys and not start.key.isdigit()
        return is_name and begins_sentence(start.text) and not (is_dash and _DASHES.search(start.text))

    def _begins_turn(self, start: Start, is_direction: bool) -> bool:
        if not self._is_candidate(start):
            return False
        if start.key in self._names or not self._voices:
            return start.key in self._names
        is_missing = self._counts[start.key] > 1 and (start.name[0].isupper() or start.key.isdigit())
        if start.key in self._unknown or (is_direction and not is_missing):
            return False
        known = list(self._names.values())
        keys = list(self._names)[: MAX_NAMES if len(self._unknown) < LISTED else 0]  # comparing is slow
        near = difflib.get_close_matches(start.key, keys, n=1, cutoff=0.7)
        nearest = f" Did you mean {self._names[near[0]]}?" if near else ""
        meant = f"Names with a voice: {', '.join(some_of(known))}.{nearest}"
        if is_missing:
            raise HiggsError(f"{start.name} has no voice. {meant} Give it a voice, or use one of these names.")
        self._unknown[start.key] = start.name
        self.warnings.append(f'"{start.name}" was read as text, because it has no voice. {meant}')
        return False

    def _is_like_name(self, line: str, start: Start | None) -> bool:
        """True if a line begins with a speaker's name and a sign, or has a colon later: "Anna, softly: Hello"."""
        if start is not None:
            return start.form in (Form.DASH, Form.LOOSE) and start.key in self._names and not start.key.isdigit()
        signed = _SIGNED.match(line)
        if signed and self._is_name(signed[1]):
            return True
        before, colon, _ = line[:60].partition(":")
        words = re.findall(rf"[\w{MARKS}'’&/-]+", before) if colon else []
        return len(words) < 5 and any(speaker_key(" ".join(words[:most])) in self._names for most in (1, 2, 3, 4))

    def _looks_like_script(self) -> bool:
        """True if at least half of the lines look as if they began with a name."""
        begins = [(start, line.strip()[:60]) for line, start, *_ in self._lines]
        alike = sum(
            bool(start and (start.form is not Form.LOOSE or start.name.isupper()))
            or bool(_LIKE_NAME.match(line) and not stage_directions(line))
            for start, line in begins
        )
        is_sure = bool(self.candidates) or any(start and is_loud(start) for _, start, *_ in self._lines)
        return 2 * alike >= len(self._lines) and (alike > 1 or is_sure)


_NO_SPEAKER = (
    "This looks like a script, but no speaker was found, so names are read aloud too. Start each line with a name and "
    'a colon, as in "Anna: Hello".'
)


def _place(text: str, line: str) -> int:
    """Return where the end of a line begins."""
    return line.rfind(text) if text else len(line)


def _are_named(units: Iterable[Sequence[ParsedLine]], forms: set[Form]) -> bool:
    """True if every unit but the first begins with a name, and there are several names."""
    unit_starts = [[line.start for line in unit if not line.is_neutral] for unit in units]
    firsts = [starts[0] if starts[0] and starts[0].form in forms else None for starts in unit_starts if starts]
    names = [start for start in firsts if start]
    is_all = None not in firsts[1:] and len({start.key for start in names}) > 1
    return is_all and not any(start.name[0].islower() for start in names)


def _paragraphs(parts: Iterable[Sequence[ParsedLine]]) -> list[list[ParsedLine]]:
    paragraphs: list[list[ParsedLine]] = [[]]
    for part in parts:
        for line in part:
            if line.text.strip():
                paragraphs[-1].append(line)
            elif paragraphs[-1]:
                paragraphs.append([])
    return paragraphs


def has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
