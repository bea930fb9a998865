"""Pause markers, paragraph gaps, comments and turns of a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.config import MAX_PAUSE
from ..core.errors import few, shown_name
from .said import Respelling, SaidText
from .wrapped import begun, mended

PAUSE = 0.5  # seconds of a [pause] without a length
_LONGEST = 40  # maximum characters of a length
PAUSE_MARKER = r"(?i:\[[ \t]*pause(?![^\W_])([^\[\]\r\n]*)\])"
_MARKER = re.compile(PAUSE_MARKER)
_LENGTH = re.compile(r"[\s:=,]*(\d+(?:[.,]\d+)?|[.,]\d+)\s*(ms|msec|milliseconds?|s|secs?|seconds?)?\s*", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True)
class Pause:
    """Silence at a position of a text."""

    at: int  # before the character of that index
    seconds: float
    is_written: bool = True  # written in the text; False for a paragraph gap


@dataclass(frozen=True)
class Script:
    """A text to speak and its pauses, in order. warnings: about invalid markers. respellings: see SaidText.

    joined: positions where no sentence begins, see titles.py.
    """

    text: str
    pauses: tuple[Pause, ...] = ()
    warnings: tuple[str, ...] = ()
    respellings: tuple[Respelling, ...] = ()
    joined: frozenset[int] = frozenset()

    @property
    def spoken_text(self) -> str:
        """The text that is said."""
        return SaidText(self.text, self.respellings).text

    @property
    def silence(self) -> float:
        """Total seconds of the pauses written in the text."""
        return sum(pause.seconds for pause in self.pauses if pause.is_written)


def read_pauses(text: str, paragraph_gap: float = 0.0) -> Script:
    """Extract pause markers from `text`: [pause], [pause 1.5], [pause:2s], [pause: 500 ms].

    A number without a unit is in seconds, or in milliseconds above MAX_PAUSE, as other packs write them. Invisible
    characters and the line ends of hard-wrapped prose go, too.
    paragraph_gap: seconds of silence between paragraphs, which blank lines separate.
    """
    text = mended(text)
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
        pauses += [Pause(gap.end(), paragraph_gap, is_written=False) for gap in _PARAGRAPH.finditer(text)]
    return Script(text, tuple(sorted(pauses, key=lambda pause: pause.at)), few(warnings))


def mask_pauses(text: str) -> str:
    """Replace each pause marker with white space of the same length, on a new line."""
    return _MARKER.sub(lambda marker: "\n".ljust(len(marker[0])), text)


def is_pause(line: str) -> bool:
    """True if a line begins with a pause marker."""
    return _MARKER.match(line) is not None


def pause_faults(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, warning of `read_pauses`) for each faulty marker."""
    for marker in _MARKER.finditer(text):
        if warning := _seconds(marker)[1]:
            yield *marker.span(), warning


def is_comment(line: str) -> bool:
    return begun(line).startswith("#")


def _seconds(marker: re.Match) -> tuple[float, str]:
    """Return (seconds of a marker, warning)."""
    inside, quote = " ".join(marker[1].split()), f'"{shown_name(marker[0])}"'
    if not inside.strip(" :"):
        return PAUSE, ""
    length = _LENGTH.fullmatch(inside) if len(inside) <= _LONGEST else None
    if length is None:
        return 0.0, f"{quote} was left out: it has no valid length. Write it like this: [pause 1.5]."
    seconds = float(length[1].replace(",", "."))
    unit = (length[2] or "").lower()
    is_guess = not unit and seconds > MAX_PAUSE
    if unit.startswith("m") or is_guess:
        seconds /= 1000
    if seconds > MAX_PAUSE:
        return MAX_PAUSE, f"{quote} was shortened to {MAX_PAUSE:.0f} seconds, the longest pause."
    if is_guess:
        return seconds, (
            f"{quote} was read as {seconds:g} seconds: without a unit, numbers above {MAX_PAUSE:.0f} are milliseconds. "
            f"Write {1000 * seconds:g} ms if that is right, or use at most {MAX_PAUSE:.0f} seconds."
        )
    return seconds, ""


@dataclass(frozen=True)
class Turn:
    """Text of one speaker at a time. speaker: empty before the first name."""

    speaker: str
    text: str
    seed: int | None = None  # overrides the call's seed
    volume: float = 1.0  # gain factor
    # If earlier text is not part of the call: how often this was said before, or the number of a text's earlier chunks.
    occurrence: int | None = None
