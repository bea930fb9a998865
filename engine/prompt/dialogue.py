"""Parser of multi-speaker scripts for dialogues, books and subtitles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core.errors import few, listed, shown
from .names import NAME, parse, speaker_key
from .script import Turn, is_comment
from .tags import every_tag
from .turns import DialogueReader, has
from .wrapped import without_invisible

_NAMED = re.compile(NAME)
_SIGN = re.compile(r"[^\r\n]")


@dataclass(frozen=True)
class Dialogue:
    """A script's turns, and the voices declared in its head: speaker -> text after the =.

    said: the script with spaces for what the turns leave out, so that places stay. unsaid: (start, stop, warning or "")
    of what they leave out.
    """

    turns: tuple[Turn, ...]
    head: dict[str, str]
    warnings: tuple[str, ...] = ()
    said: str = ""
    unsaid: tuple[tuple[int, int, str], ...] = ()

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
    are comments, and \\# is a literal #. Speaker 1, [S1], [Speaker_1] and [1] are the same name. Other signs, as in
    `Name (softly) Text`, count for a name that has a voice or other lines. Stage directions, such as (He leaves.) on a
    line, are left out. The warnings list these, and ambiguous lines.

    Args:
        script: The whole text.
        known: Names with a voice in addition to those declared in the head.
        knows_tag: True if the model follows a control tag. Manners become tags only then.

    Raises:
        HiggsError: A name without a voice recurs while others have one.
    """
    written = script.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, written))]
    head, lines = read_head(script.splitlines())
    parsed = parse(lines)
    reader = DialogueReader([parsed], [*known, *head], knows_tag=knows_tag)
    turns = reader.turns(parsed)
    warnings = [*few(reader.warnings), *reader.doubts(turns), *heads_unused(head, turns)]
    headings = [line.strip("# ") for line in script.splitlines() if line.lstrip().startswith("##")]
    if sum(len(line) <= 80 and _NAMED.fullmatch(line) is not None for line in headings) > 1:
        warnings.append(f"Lines that start with # are comments, so {shown(headings[0])} was not read as a name.")
    places = [at for at, line in enumerate(written) if not is_comment(line)]
    body = places[len(places) - len(lines) :]
    unsaid = [(starts[at], starts[at + 1], "") for at in sorted({*range(len(written))}.difference(body))]
    unsaid += [(starts[body[at]] + start, starts[body[at]] + stop, says) for at, start, stop, says in reader.unsaid]
    unsaid = tuple(sorted(unsaid))
    return Dialogue(tuple(turns), head, tuple(warnings), _blanked(script, unsaid), unsaid)


def script_names(script: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (voices declared in the head of a script, possible speaker names)."""
    head, lines = read_head(script.splitlines())
    return head, DialogueReader([parse(lines)]).found_names


def read_head(lines: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return (voices declared in the first lines, other lines), without comments."""
    lines, head = [line for line in lines if not is_comment(line)], {}
    for at, line in enumerate(lines):
        name, _, voice = (part.strip() for part in line.partition("="))
        name = without_invisible(name)
        if voice and len(name) <= 80 and _NAMED.fullmatch(name):
            head[name] = voice
        elif line.strip():
            return head, lines[at:]
    return head, []


def heads_unused(head: Iterable[str], turns: Iterable[Turn]) -> list[str]:
    """Return a warning if the head declares voices that no turn uses."""
    speaking = {speaker_key(turn.speaker) for turn in turns}
    unused = [name for name in head if speaker_key(name) not in speaking]
    return [f"{listed(unused)} {has(unused)} a voice at the top of the script but no lines."] if unused else []


def _blanked(text: str, unsaid: Iterable[tuple[int, int, str]]) -> str:
    parts, end = [], 0
    for start, stop, _ in unsaid:
        if stop > end:
            parts += [text[end:start], _SIGN.sub(" ", text[max(start, end) : stop])]
            end = stop
    return "".join([*parts, text[end:]])
