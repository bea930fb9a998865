"""Directions in a text: pauses of a set length, and gaps between paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.config import MAX_PAUSE
from ..core.errors import few, shown_name

PAUSE = 0.5  # seconds of a [pause] that names none
_LONGEST = 40  # characters that name a length
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

    @property
    def silence(self) -> float:
        """Seconds of all pauses that are written in the text."""
        return sum(pause.seconds for pause in self.pauses if pause.asked)


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
    return Script(text, tuple(sorted(pauses, key=lambda pause: pause.at)), few(warnings))


def is_pause(line: str) -> bool:
    """True if a line begins with a pause marker."""
    return _MARKER.match(line) is not None


def pause_faults(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, stop, the warning of `read_pauses`) of each marker with something wrong."""
    for marker in _MARKER.finditer(text):
        if warning := _seconds(marker)[1]:
            yield *marker.span(), warning


def without_comments(script: str) -> str:
    """A script whose comments are blanks, every character at its place."""
    return "".join(" " * len(line) if is_comment(line) else line for line in script.splitlines(keepends=True))


def is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _seconds(marker: re.Match) -> tuple[float, str]:
    """(seconds of a marker, what is wrong with it)."""
    inside, told = " ".join(marker[1].split()), f'"{shown_name(marker[0])}"'
    if not inside.strip(" :"):
        return PAUSE, ""
    length = _LENGTH.fullmatch(inside) if len(inside) <= _LONGEST else None
    if length is None:
        return 0.0, f"{told} was left out: it has no valid length. Write it like this: [pause 1.5]."
    seconds = float(length[1].replace(",", "."))
    unit = (length[2] or "").lower()
    is_guess = not unit and seconds > MAX_PAUSE
    if unit.startswith("m") or is_guess:
        seconds /= 1000
    if seconds > MAX_PAUSE:
        return MAX_PAUSE, f"{told} was shortened to {MAX_PAUSE:.0f} seconds, the longest pause."
    if is_guess:
        return seconds, (
            f"{told} was read as {seconds:g} seconds: without a unit, numbers above {MAX_PAUSE:.0f} are milliseconds. "
            f"Write {1000 * seconds:g} ms if that is right, or use at most {MAX_PAUSE:.0f} seconds."
        )
    return seconds, ""


@dataclass(frozen=True)
class Turn:
    """Words of one speaker at a time. An empty speaker is the one before the first name."""

    speaker: str
    text: str
    seed: int | None = None  # instead of the call's
    volume: float = 1.0  # times as loud
    # Where the call does not hold all that was said before: how often this was, or of one text the chunks before it.
    occurrence: int | None = None
