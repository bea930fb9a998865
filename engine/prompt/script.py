"""What a text says beside its words: pauses of a set length, gaps between paragraphs, who speaks. Knows no model."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..errors import HiggsError
from .tags import TAG_VALUES

PAUSE = 0.5  # seconds of a [pause] that names none
MAX_PAUSE = 60.0  # seconds
_MARKER = re.compile(r"\[[ \t]*pause(?![^\W_])([^\[\]\r\n]*)\]", re.IGNORECASE)
_LENGTH = re.compile(r"[\s:=,]*(\d+(?:[.,]\d+)?|[.,]\d+)\s*(ms|msec|milliseconds?|s|secs?|seconds?)?\s*", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True)
class Pause:
    """Silence at a place of a text."""

    at: int  # before the character of that index
    seconds: float
    asked: bool = True  # written in the text; else the gap between two paragraphs


@dataclass(frozen=True)
class Script:
    """A text to speak and its pauses, in order; warnings are about markers that were left out."""

    text: str
    pauses: tuple[Pause, ...] = ()
    warnings: tuple[str, ...] = ()


def read_pauses(text: str, paragraph_gap: float = 0.0) -> Script:
    """Takes pause markers out of `text`: [pause], [pause 1.5], [pause:2s], [pause: 500 ms].

    A number without a unit is seconds; above MAX_PAUSE milliseconds, as other packs write them. paragraph_gap: seconds
    of silence between paragraphs, which are parted by blank lines.
    """
    parts, pauses, warnings, length, end = [], [], [], 0, 0
    for marker in _MARKER.finditer(text):
        parts += [text[end : marker.start()], " "]
        length += marker.start() - end + 1
        end = marker.end()
        seconds, warning = _seconds(marker)
        if warning:
            warnings.append(warning)
        if seconds:
            pauses.append(Pause(length, seconds))
    text = "".join([*parts, text[end:]])
    if paragraph_gap:
        pauses += [Pause(gap.end(), paragraph_gap, asked=False) for gap in _PARAGRAPH.finditer(text)]
    return Script(text, tuple(sorted(pauses, key=lambda pause: pause.at)), tuple(dict.fromkeys(warnings)))


def pause_faults(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, stop, the warning of `read_pauses`) of each marker with something wrong."""
    for marker in _MARKER.finditer(text):
        if warning := _seconds(marker)[1]:
            yield *marker.span(), warning


def without_comments(script: str) -> str:
    """A script whose comments are blanks, every character at its place."""
    return "".join(" " * len(line) if _COMMENT.match(line) else line for line in script.splitlines(keepends=True))


def _seconds(marker: re.Match) -> tuple[float, str]:
    """(seconds of a marker, what is wrong with it)."""
    if not marker[1].strip(" \t:"):
        return PAUSE, ""
    length = _LENGTH.fullmatch(marker[1])
    if length is None:
        return 0.0, f'"{marker[0]}" was left out: it names no length. Write for example [pause 1.5].'
    seconds = float(length[1].replace(",", "."))
    unit = (length[2] or "").lower()
    if unit.startswith("m") or (not unit and seconds > MAX_PAUSE):
        seconds /= 1000
    if seconds > MAX_PAUSE:
        return MAX_PAUSE, f'"{marker[0]}" became {MAX_PAUSE:.0f} seconds, the longest pause.'
    return seconds, ""


@dataclass(frozen=True)
class Turn:
    """What one speaker says at a time. An empty speaker is whoever speaks before the first name."""

    speaker: str
    text: str
    seed: int | None = None  # instead of the call's
    volume: float = 1.0  # times as loud
    # Where the call does not hold all that was said before: how often this was, or of one text the chunks before it.
    occurrence: int | None = None


@dataclass(frozen=True)
class Dialogue:
    """A script's turns, and the voices that its head names: speaker -> what follows the =."""

    turns: tuple[Turn, ...]
    head: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def speakers(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(turn.speaker for turn in self.turns))


def read_dialogue(script: str, known: Iterable[str] = ()) -> Dialogue:
    """A script for several speakers; known: names that have a voice besides those that its head declares.

    `Name: text`, `[Name] text` or `[Name]` on a line of its own begin a turn, `[Name|seed:24|speed:fast|volume:-6dB]`
    with settings of its own. Where any voice is declared, only names with one do; else names that recur where a line
    begins, or several where every line begins with one. `Name = voice` lines at the head declare voices, a line that
    begins with # is a comment, and \\# is a #. Speaker 1, [S1], [Speaker_1] and [1] are the same name. Raises
    HiggsError for a name without a voice where others have one.
    """
    return DialogueReader(script.splitlines(), known).read()


def script_names(script: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(voices that the head of a script names, names that stand where a turn could begin). Judges nothing."""
    reader = DialogueReader(script.splitlines())
    return reader.head, tuple(dict.fromkeys(reader.found))


def speaker_key(name: str) -> str:
    """By which a speaker's name is known, however it is written."""
    key = " ".join(name.replace("_", " ").split()).casefold()
    numbered = re.fullmatch(r"(?:speaker|s)?\s*(\d+)", key)
    return numbered[1] if numbered else key


_NAME = r"[^\W_][\w.'’-]*(?: [\w.'’-]+){0,3}"
_DECLARED = re.compile(rf"\s*({_NAME})\s*=\s*(\S.*?)\s*")
_BRACKET = re.compile(rf"\s*\[\s*({_NAME})\s*((?:\|[^\[\]|]*)*)\]\s*:?\s*(.*)", re.DOTALL)
_COLON = re.compile(rf"\s*({_NAME})\s*(?::(?=\s|$)|：)\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"\s*#")
_LONGEST_NAME = 40
_SPEEDS = {name.replace("_", " "): f"<|prosody:speed_{name}|>" for name in ("very_slow", "slow", "fast", "very_fast")}
_VOLUME = re.compile(r"(?:(?P<db>[+-]?\d{1,3}(?:\.\d+)?)\s*db|(?P<times>\d{1,3}(?:\.\d+)?))", re.IGNORECASE)
_LOUDEST = 4.0  # times
_RESERVED = frozenset(
    speaker_key(word) for category, values in TAG_VALUES.items() for word in (category, *values, "pause", "speed")
)


@dataclass
class _Settings:
    """What a turn's brackets say of it."""

    seed: int | None = None
    lead: str = ""  # stands before the text
    volume: float = 1.0


class DialogueReader:
    """Reads one script. `head`, `found` and `names` are there before anything is judged.

    known: names with a voice, besides those of the head; named: others that begin a turn. anyone: and so do names that
    recur, even where there are voices.
    """

    def __init__(
        self, lines: Iterable[str], known: Iterable[str] = (), named: Iterable[str] = (), anyone: bool = False
    ):
        lines = [line for line in lines if not _COMMENT.match(line)]
        self.warnings: list[str] = []
        self.head: dict[str, str] = {}  # speaker -> voice
        while lines and (not lines[0].strip() or _DECLARED.fullmatch(lines[0])):
            if declared := _DECLARED.fullmatch(lines.pop(0)):
                self.head[declared[1]] = declared[2]
        self._lines = lines
        self._names = {speaker_key(name): name for name in (*known, *self.head) if name}
        self.found = [start[1] for line in lines if (start := self._start(line))]
        self._counts = Counter(map(speaker_key, self.found))
        self._voices = bool(self._names) and not anyone
        for name in named:
            self._names.setdefault(speaker_key(name), name)
        if not self._voices:
            is_all = len(self._counts) > 1 and len(self.found) == sum(bool(line.strip()) for line in lines)
            is_all = is_all and not any(name[0].islower() for name in self.found)
            for name in self.found:
                if is_all or self._counts[speaker_key(name)] > 1:
                    self._names.setdefault(speaker_key(name), name)

    @property
    def names(self) -> tuple[str, ...]:
        """Those that begin a turn, as they are spelled."""
        return tuple(self._names.values())

    def read(self) -> Dialogue:
        """The whole script."""
        turns = self.turns(self._lines)
        return Dialogue(tuple(turns), self.head, tuple(dict.fromkeys(self.warnings)))

    def turns(self, lines: Iterable[str], speaker: str = "") -> list[Turn]:
        """Those of some lines; speaker: who says what stands before the first name. Raises as `read_dialogue`."""
        turns, settings, said = [], _Settings(), []

        def end():
            if text := "\n".join(said).replace("\\#", "#").strip():
                turns.append(Turn(speaker, settings.lead + text, settings.seed, settings.volume))

        for line in lines:
            start = self._start(line)
            if start is None or not self._begins_turn(start):
                said.append(line)
                continue
            end()
            speaker = self._names[speaker_key(start[1])]
            settings = self._settings(start)
            said = [start[start.re.groups]]
        end()
        return turns

    def _start(self, line: str) -> re.Match | None:
        """What might begin a turn: (name, settings, text) of brackets, (name, text) before a colon."""
        match = _BRACKET.fullmatch(line) or _COLON.fullmatch(line)
        if (
            _MARKER.match(line.strip())
            or match is None
            or len(match[1]) > _LONGEST_NAME
            or speaker_key(match[1]) in _RESERVED
        ):
            return None
        choices = match.re is _BRACKET and any(":" not in setting for setting in match[2].split("|")[1:])
        return None if choices and speaker_key(match[1]) not in self._names else match

    def _begins_turn(self, start: re.Match) -> bool:
        key = speaker_key(start[1])
        if key in self._names:
            return True
        if not self._voices:
            return False
        near = difflib.get_close_matches(key, self._names, n=1, cutoff=0.7)
        meant = f" Did you mean {self._names[near[0]]}?" if near else ""
        known = ", ".join(self._names.values())
        if self._counts[key] > 1 and (start[1][0].isupper() or key.isdigit()):
            raise HiggsError(f"{start[1]} has no voice. Names with one: {known}.{meant}")
        self.warnings.append(f'"{start[1]}" was read as text, for it has no voice. Names with one: {known}.{meant}')
        return False

    def _settings(self, start: re.Match) -> _Settings:
        """Those in a turn's brackets; what is none of them gets a warning."""
        given = _Settings()
        for setting in start[2].split("|")[1:] if start.re is _BRACKET else ():
            name, _, value = (part.strip() for part in setting.partition(":"))
            speed, volume = _SPEEDS.get(value.replace("_", " ")), _VOLUME.fullmatch(value)
            if name == "seed" and value.isdecimal():
                given.seed = int(value)
            elif name == "speed" and speed:
                given.lead = speed
            elif name == "volume" and volume:
                times = 10 ** (float(volume["db"]) / 20) if volume["db"] else float(volume["times"])
                given.volume = min(_LOUDEST, times)
            else:
                self.warnings.append(
                    f'"{setting.strip()}" of {start[1]} was left out. Settings are seed:24, volume:0.5 or volume:-6dB, '
                    f"and speed: {', '.join(_SPEEDS)}."
                )
        return given
