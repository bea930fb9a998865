"""What a text says beside its words: pauses of a set length, and gaps between paragraphs. Knows no model."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
