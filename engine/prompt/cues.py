"""SRT and WebVTT files as cues with speakers, and cues as SRT."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ..core.errors import few, listed, shown_name
from ..files.plain_text import unescape
from .cue_blocks import Block, read_blocks
from .dialogue import heads_unused, read_head
from .names import parse, speaker_key
from .pronunciations import Pronunciations
from .script import Turn, read_pauses
from .tags import every_tag, is_spoken, stage_directions
from .turns import DialogueReader
from .wrapped import begun, joined_words, whole_words, without_invisible


@dataclass(frozen=True)
class Cue:
    """Text with its start and stop in seconds."""

    start: float
    stop: float
    text: str
    speaker: str = ""


@dataclass(frozen=True)
class CueTurns:
    """A cue of a file and the turns to speak in its time. No turns if it has no words."""

    number: int  # from the file, else counted from 1
    start: float  # seconds
    stop: float
    text: str  # as in the file
    turns: tuple[Turn, ...]

    @property
    def speakers(self) -> frozenset[str]:
        return frozenset(turn.speaker for turn in self.turns)


@dataclass(frozen=True)
class CueSheet:
    """A subtitle file: cues sorted by start, and the voices declared before the first cue."""

    cues: tuple[CueTurns, ...]
    head: dict[str, str]  # speaker -> text after the =
    warnings: tuple[str, ...] = ()

    @property
    def speakers(self) -> list[str]:
        """Speakers in order of appearance."""
        return list(dict.fromkeys(turn.speaker for cue in self.cues for turn in cue.turns))

    def said_as(self, pronunciations: Pronunciations) -> CueSheet:
        return replace(self, cues=tuple(replace(one, turns=pronunciations.respelled(one.turns)) for one in self.cues))


def read_cues(
    text: str, known: Iterable[str] = (), anyone: bool = False, knows_tag: Callable[[str], bool] = every_tag
) -> CueSheet:
    """Parse SRT or WebVTT, with names as in a script (`read_dialogue`). A cue without a name keeps the last speaker.

    Names in capitals before a colon, and those in WebVTT's <v Name>, need not recur. Sound descriptions, such as
    [door slams] or (SIGHS), and music marks are removed. Cues with wrong times are skipped, and the warnings name them.

    Args:
        text: Text of the file.
        known: Names that have a voice.
        anyone: True if others may speak too.
        knows_tag: See `read_dialogue`.

    Raises:
        HiggsError: No cue can be read; or, unless `anyone`, a name without a voice recurs while others have one.
    """
    return _CueReader(text).read(known, anyone, knows_tag)


def cue_names(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (voices declared before the first cue, possible speaker names)."""
    reader = _CueReader(text)
    return reader.head, reader.names


def write_srt(cues: Iterable[Cue]) -> str:
    """Format cues as SubRip. A cue with a speaker begins with the name."""
    entries = []
    for number, cue in enumerate(cues, 1):
        name = f"{cue.speaker}: " if cue.speaker else ""
        entries.append(f"{number}\n{srt_time(cue.start)} --> {srt_time(cue.stop)}\n{name}{cue.text}\n")
    return "\n".join(entries)


def srt_time(seconds: float) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"


_STYLE = re.compile(
    r"</?(?:i|b|u|s|em|strong|font|span|c|ruby|rt|lang|v|br)\b[^<>]*>|<\d+:[\d:.]+>|\{\\[^{}]*\}|\{[yYcCfFsS]:[^{}]*\}",
    re.IGNORECASE,
)
_SAYS = re.compile(r"<v(?:\.[^\s<>]*)?\s([^<>]*)>")  # WebVTT voice tag
_BREAK = re.compile(r"\\[Nn]|<br\s*/?>")  # line break, in files converted from other formats
_MUSIC = re.compile(r"[\u2669-\u266c]|^\s*#+(?=\s|$)|(?<=\s)#+\s*$")
_NOTES = re.compile(r"[\u2669-\u266c]+")
_SONG = re.compile(rf"{_NOTES.pattern}[^\u2669-\u266c]*(?:{_NOTES.pattern}|\Z)")
_HASHES = re.compile(r"#+\s.*\s#+")
_LEAD = re.compile(r"^\s*(?:[-\u2010-\u2015\u2212]+\s*(?=[^\s\d])|>>+\s*)")  # change of speaker
_BRACKETS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)")


class _CueReader:
    """Reads one file. The constructor sets `head` and `names`; `read` decides which names speak."""

    def __init__(self, text: str):
        self._file = read_blocks(text)
        self._tagged: list[str] = []  # names in <v Name>
        self._songs, self._dashed = Counter(), []  # songs, and numbers of cues of several lines with dashes
        for block in self._file.blocks:
            lines = [plain for line in block.lines for plain in self._plain(line)]
            if sum(_LEAD.match(line) is not None for line in lines) > 1:
                self._dashed.append(block.number)
            lines = _BRACKETS.sub(lambda match: " ".join(match[0].split()), "\n".join(self._unsung(lines))).split("\n")
            block.spoken_lines = [_LEAD.sub("", _MUSIC.sub(" ", line)).strip() for line in lines]
        self._repeated = _drop_rolling(self._file.blocks)
        self._parsed = [
            parse(line for line in block.spoken_lines if not _describes(line)) for block in self._file.blocks
        ]
        self.head, _ = read_head(line for line in self._file.preamble if "=" in line)
        names = DialogueReader(self._parsed, self.head, are_cues=True).found_names
        self.names = tuple(dict.fromkeys([*names, *self._tagged]))
        # Subtitles for the deaf write speaker names in capitals.
        spoken = (line for block in self._file.blocks for line in block.spoken_lines)
        before_colon = {line.partition(":")[0].partition("(")[0].strip() for line in spoken if ":" in line}
        self._named = [*self._tagged, *(name for name in names if name.isupper() and name in before_colon)]

    def _plain(self, line: str) -> Iterator[str]:
        """Yield a line without markup, split before each voice tag."""

        def name(match: re.Match) -> str:
            self._tagged += filter(None, [match[1].strip()])
            return f"\n[{match[1].strip()}] "

        line = _BREAK.sub("\n", _SAYS.sub(name, line)).replace("\\h", " ")
        line = unescape(_STYLE.sub("", line))
        yield from map(begun, line.splitlines())

    def _unsung(self, lines: list[str]) -> list[str]:
        """Return a cue's lines without its songs: between notes, behind the only one, or before it in the last line."""

        def drop(song: re.Match | str) -> str:
            text = " ".join((song if isinstance(song, str) else song[0]).split())
            if any(map(str.isalnum, text)):
                self._songs[text] += 1
            return ""

        whole = "\n".join(drop(line) if _HASHES.fullmatch(line.strip()) else line for line in lines)
        notes = [match.end() for match in _NOTES.finditer(whole)]
        before, _, last = whole.rpartition("\n")
        if notes == [len(whole.rstrip())] and any(map(str.isalnum, last)):
            return [*before.split("\n"), drop(last)]
        return _SONG.sub(drop, whole).split("\n")

    def read(self, known: Iterable[str], anyone: bool, knows_tag: Callable[[str], bool]) -> CueSheet:
        known = [*known, *self.head]
        reader = DialogueReader(self._parsed, known, self._named, anyone, are_cues=True, knows_tag=knows_tag)
        cues, left_out, speaker = [], Counter(), ""
        words = whole_words("\n\n".join("\n".join(block.spoken_lines) for block in self._file.blocks))
        for block in sorted(self._file.blocks, key=lambda block: block.start):
            lines = [_without_descriptions(line, reader.keys, left_out) for line in block.spoken_lines]
            turns = reader.turns(parse(lines), speaker)
            texts = (" ".join(joined_words(without_invisible(turn.text), words).split()) for turn in turns)
            turns = (replace(turn, text=text) for turn, text in zip(turns, texts, strict=True))
            turns = tuple(turn for turn in turns if is_spoken(read_pauses(turn.text).text))
            speaker = turns[-1].speaker if turns else speaker
            raw = "\n".join(line for line in block.lines if line.strip())
            cues.append(CueTurns(block.number, block.start, block.stop, raw, turns))
        return CueSheet(tuple(cues), self.head, tuple(self._warnings(cues, reader, left_out)))

    def _warnings(self, cues: list[CueTurns], reader: DialogueReader, left_out: Counter[str]) -> list[str]:
        turns = [turn for cue in cues for turn in cue.turns]
        warnings = [*self._file.warnings, *few(reader.warnings), *reader.doubts(turns), *heads_unused(self.head, turns)]
        dashed = {*self._dashed}
        one_voice = [cue.number for cue in cues if cue.number in dashed and len(cue.turns) == 1]
        if one_voice:
            places = listed([f"Cue {number}" for number in one_voice])
            warnings.append(f"One voice speaks all lines with dashes, since they have no names: {places}.")
        if self._repeated:
            warnings.append(f"Lines that rolling captions repeat were spoken once: {self._repeated:,} left out.")
        if self._songs:
            warnings.append(f"Songs were not spoken: {_first(self._songs)}. Remove the notes if they should be.")
        if left_out:
            warnings.append(f"Sound descriptions were not spoken: {_first(left_out)}.")
        return warnings


def _first(counts: Counter[str]) -> str:
    return ", ".join([shown_name(text) for text, _ in counts.most_common(3)] + ["..."] * (len(counts) > 3))


def _drop_rolling(blocks: Iterable[Block]) -> int:
    """Drop lines of rolling captions, if most cues begin with the end of the cue before. Return how many."""
    lines = [[line for line in block.spoken_lines if line] for block in blocks]
    repeats = [
        next((most for most in range(min(4, len(now), len(before)), 0, -1) if before[-most:] == now[:most]), 0)
        for before, now in pairwise(lines)
    ]
    grow = any(0 < count < len(now) for count, now in zip(repeats, lines[1:], strict=False))
    if not grow or len(repeats) < 2 or 2 * sum(map(bool, repeats)) <= len(repeats):
        return 0
    for block, now, count in zip(list(blocks)[1:], lines[1:], repeats, strict=False):
        block.spoken_lines = now[count:]
    return sum(repeats)


def _describes(line: str) -> bool:
    """True if a line has only brackets, or begins with brackets that hold a lower-case word or a sound."""
    lead = _BRACKETS.match(line)
    return lead is not None and (
        not _BRACKETS.sub("", line).strip() or lead[0][1:2].islower() or bool(stage_directions(lead[0]))
    )


def _without_descriptions(line: str, names: frozenset[str], left_out: Counter) -> str:
    """Remove sound descriptions from a line. names: keys of the speakers."""
    if "(" not in line and "[" not in line:
        return line
    ((_, start, *_),) = parse([line])
    is_named = start is not None and bool(start.manner) and start.key in names and line.endswith(start.text)
    name, line = (line[: -len(start.text)], start.text) if start and is_named and start.text else ("", line)
    begin = len(line) - len(line.lstrip())

    def judge(match: re.Match) -> str:
        bracketed, inside, leads = match[0], match[0][1:-1].strip(), match.start() <= begin
        if bracketed[0] == "[":
            is_name = leads and speaker_key(inside.partition("|")[0]) in names
            if is_name or read_pauses(bracketed).text != bracketed:
                return bracketed
        elif not (bracketed == line or (leads and inside.isupper()) or stage_directions(bracketed)):
            return bracketed
        left_out[bracketed] += 1
        return " "

    return name + _BRACKETS.sub(judge, line)
