"""Subtitle files as they are found, SRT or WebVTT, become cues with who says what; cues become SRT. Knows no sound."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..errors import HiggsError
from .pronunciations import Pronunciations
from .script import DialogueReader, Turn, read_pauses, speaker_key
from .tags import is_spoken, stage_directions


@dataclass(frozen=True)
class Cue:
    """What is heard from when to when, in seconds."""

    start: float
    stop: float
    text: str
    speaker: str = ""


@dataclass(frozen=True)
class CueTurns:
    """A cue of a file, and what is to be said in its time: nothing, where it holds no word."""

    number: int  # as the file has it, else counted from 1
    start: float  # seconds
    stop: float
    text: str  # as the file has it
    turns: tuple[Turn, ...]

    @property
    def speakers(self) -> frozenset[str]:
        return frozenset(turn.speaker for turn in self.turns)


@dataclass(frozen=True)
class CueSheet:
    """A subtitle file: cues in the order of their starts, and the voices that it names before the first cue."""

    cues: tuple[CueTurns, ...]
    head: dict[str, str]  # speaker -> what follows the =
    warnings: tuple[str, ...] = ()

    @property
    def speakers(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(turn.speaker for cue in self.cues for turn in cue.turns))

    def said_as(self, pronunciations: Pronunciations) -> CueSheet:
        """The same with words as they are listed."""

        def said(turn: Turn) -> Turn:
            return replace(turn, text=pronunciations.apply(turn.text, turn.speaker))

        return replace(self, cues=tuple(replace(cue, turns=tuple(map(said, cue.turns))) for cue in self.cues))


def read_cues(text: str, known: Iterable[str] = (), anyone: bool = False) -> CueSheet:
    """SRT or WebVTT, with names as in a script (`read_dialogue`); a cue without one goes on with whoever spoke last.

    Names in capitals before a colon, and those of WebVTT's <v Name>, need not recur. What describes sound, such as
    [door slams] or (SIGHS), and marks for music are left out. known: names that have a voice; anyone: others may speak
    as well. Raises HiggsError that names the cue where a time cannot be read or ends before it begins, and for a name
    without a voice where others have one, unless anyone may speak.
    """
    return _CueReader(text).read(known, anyone)


def cue_names(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(voices that a subtitle file names before its first cue, names that stand where a turn could begin)."""
    reader = _CueReader(text)
    return reader.head, reader.found


def write_srt(cues: Iterable[Cue]) -> str:
    """Cues as a SubRip file; a cue with a speaker begins with the name."""
    entries = []
    for number, cue in enumerate(cues, 1):
        name = f"{cue.speaker}: " if cue.speaker else ""
        entries.append(f"{number}\n{srt_time(cue.start)} --> {srt_time(cue.stop)}\n{name}{cue.text}\n")
    return "\n".join(entries)


def srt_time(seconds: float) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"


_TIME = r"(?:(\d{1,9})\s*:\s*)?(\d{1,3})\s*:\s*(\d{1,2})(?:\s*[.,:]\s*(\d{1,9}))?"
_TIMES = re.compile(rf"\s*{_TIME}\s*--+>\s*{_TIME}(?:\s.*)?")
_ARROW = re.compile(r"--+>")
_STYLE = re.compile(
    r"</?(?:i|b|u|s|em|strong|font|span|c|ruby|rt|lang|v|br)\b[^<>]*>|<\d+:[\d:.]+>|\{\\[^{}]*\}|\{[yYcCfFsS]:[^{}]*\}",
    re.IGNORECASE,
)
_SAYS = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]+)>")  # WebVTT's way to name who speaks
_BREAK = re.compile(r"\\[Nn]|<br\s*/?>")  # of a line, where a file was made of another kind
_MUSIC = re.compile(r"[\u2669-\u266c]|^\s*#+(?=\s|$)|(?<=\s)#+\s*$")
_LEAD = re.compile(r"^\s*(?:[-\u2010-\u2015\u2212]+\s*(?=[^\s\d])|>>+\s*)")  # somebody else speaks
_BRACKETS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)")


@dataclass
class _Block:
    """A cue as it stands in the file."""

    number: int
    start: float
    stop: float
    lines: list[str]
    said: list[str] = field(default_factory=list)  # without styles


class _CueReader:
    """Reads one file. `head` and `found` are there before anything is judged."""

    def __init__(self, text: str):
        lines = text.lstrip("\ufeff").replace("\0", "").splitlines()
        self._blocks = _blocks(lines)
        self._tagged: list[str] = []  # names in <v Name>
        for block in self._blocks:
            block.said = [said for line in block.lines for said in self._plain(line)]
        first = next((at for at, line in enumerate(lines) if _ARROW.search(line)), 0)
        is_vtt = lines[0].startswith("WEBVTT")
        self._preamble = [line for line in lines[:first] if "=" in line and not is_vtt]
        reader = self._reader()
        self.head, self.found = reader.head, tuple(dict.fromkeys([*reader.found, *self._tagged]))
        self._named = [*self._tagged, *filter(self._is_called, self.found)]

    def _reader(self, known: Iterable[str] = (), named: Iterable[str] = (), anyone: bool = False) -> DialogueReader:
        # The full stop ends the head, for a first cue may say "E = m c squared".
        said = [line for block in self._blocks for line in block.said if not _describes(line)]
        return DialogueReader([*self._preamble, ".", *said], known, named, anyone)

    def _plain(self, line: str) -> Iterator[str]:
        """A line as it is said, as several where names are marked inside."""
        self._tagged += [name.strip() for name in _SAYS.findall(line)]
        line = _BREAK.sub("\n", _SAYS.sub(r"\n[\1] ", line)).replace("\\h", " ")
        line = html.unescape(_STYLE.sub("", line))
        for one in line.splitlines():
            yield _LEAD.sub("", _MUSIC.sub(" ", one)).strip()

    def _is_called(self, name: str) -> bool:
        """Whether it stands in capitals before a colon, as subtitles for the deaf name who speaks."""
        return name.isupper() and any(line.startswith(f"{name}:") for block in self._blocks for line in block.said)

    def read(self, known: Iterable[str], anyone: bool) -> CueSheet:
        reader = self._reader(known, self._named, anyone)
        keys = set(map(speaker_key, reader.names))
        cues, left_out, speaker = [], Counter(), ""
        for block in sorted(self._blocks, key=lambda block: block.start):
            lines = [_without_descriptions(line, keys, left_out) for line in block.said]
            turns = reader.turns(lines, speaker)
            turns = (replace(turn, text=" ".join(turn.text.split())) for turn in turns)
            turns = tuple(turn for turn in turns if is_spoken(read_pauses(turn.text).text))
            speaker = turns[-1].speaker if turns else speaker
            raw = "\n".join(line for line in block.lines if line.strip())
            cues.append(CueTurns(block.number, block.start, block.stop, raw, turns))
        warnings = list(dict.fromkeys(reader.warnings))
        if left_out:
            shown = ", ".join([*(text for text, _ in left_out.most_common(3)), *(["..."] if len(left_out) > 3 else [])])
            warnings.append(f"Not spoken, for it describes what is heard: {shown}.")
        return CueSheet(tuple(cues), reader.head, tuple(warnings))


def _describes(line: str) -> bool:
    """Whether a line is nothing but brackets, or begins with some that are not a name: a small letter, or a sound."""
    lead = _BRACKETS.match(line)
    return lead is not None and (
        not _BRACKETS.sub("", line).strip() or lead[0][1:2].islower() or bool(stage_directions(lead[0]))
    )


def _without_descriptions(line: str, names: set[str], left_out: Counter) -> str:
    """A line without what describes a sound. names: keys of those who speak."""

    def judge(match: re.Match) -> str:
        bracketed, inside, leads = match[0], match[0][1:-1].strip(), not line[: match.start()].strip()
        if bracketed[0] == "[":
            is_name = leads and speaker_key(inside.partition("|")[0]) in names
            if is_name or read_pauses(bracketed).text != bracketed:
                return bracketed
        elif not (bracketed == line or (leads and inside.isupper()) or stage_directions(bracketed)):
            return bracketed
        left_out[bracketed] += 1
        return " "

    return _BRACKETS.sub(judge, line)


def _blocks(lines: Sequence[str]) -> list[_Block]:
    places = [place for place, line in enumerate(lines) if _ARROW.search(line)]
    if not places:
        raise HiggsError(
            "there are no cues: no line such as 00:00:01,000 --> 00:00:03,500 was found. Give the text of an SRT or "
            "VTT file, or the path of one."
        )
    above: list[int | None] = []  # the lines with the cues' numbers
    numbers: list[int] = []
    for floor, place in zip([-1, *places], places, strict=False):
        expected = numbers[-1] + 1 if numbers else 1
        above.append(_number_above(lines, place, floor, expected))
        numbers.append(expected if above[-1] is None else int(lines[above[-1]]))
    ends = [place if at is None else at for at, place in zip(above[1:], places[1:], strict=True)]
    found = []
    for number, place, end in zip(numbers, places, [*ends, len(lines)], strict=True):
        said = list(lines[place + 1 : end])
        if lines[0].startswith("WEBVTT"):  # a blank line ends a cue, and then come notes or the next one's name
            said = said[: next((at for at, line in enumerate(said) if not line.strip()), len(said))]
        start, stop = _times(lines[place], f"cue {number} (line {place + 1})")
        found.append(_Block(number, start, stop, said))
    return found


def _number_above(lines: Sequence[str], place: int, floor: int, expected: int) -> int | None:
    """The line with a cue's number, above its times at `place`: after a blank line, or the number that is expected.

    floor: the times of the cue before.
    """
    at = place - 1
    while at > floor and not lines[at].strip():
        at -= 1
    if at <= floor or not re.fullmatch(r"\s*[0-9]{1,9}\s*", lines[at]):
        return None
    return at if at == 0 or not lines[at - 1].strip() or int(lines[at]) == expected else None


def _times(line: str, cue: str) -> tuple[float, float]:
    match = _TIMES.fullmatch(line)
    if match is None:
        raise HiggsError(
            f'{cue}: "{line.strip()}" cannot be read as its times. Write for example 00:01:02,500 --> 00:01:05,000.'
        )
    start, stop = (
        int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{rest or 0}")
        for hours, minutes, seconds, rest in (match.groups()[:4], match.groups()[4:])
    )
    if stop < start:
        raise HiggsError(f'{cue} ends before it begins: "{line.strip()}". Correct its times.')
    return start, stop
