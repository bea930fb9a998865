"""Raw cues of SRT and WebVTT files: numbers, times and lines. cues.py interprets the lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.errors import HiggsError, few, shown_name

_LOOK = 200  # characters of a line searched for times
_TIME = r"(?:(\d{1,9})\s*:\s*)?(\d{1,3})\s*:\s*(\d{1,2})(?:\s*[.,:]\s*(\d{1,9}))?"
_TIMES = re.compile(rf"{_TIME}\s*--+>\s*{_TIME}(?=\s|$)")
_ROUGHLY = r"\d{1,9}\s?:\s?\d{1,2}(?:\s?:\s?\d{1,2})?(?:\s?[.,]\s?\d{1,9})?"
_LIKE_TIMES = re.compile(rf"{_ROUGHLY}\s*(?:[^\w\s]{{1,4}}\s*|\s){_ROUGHLY}")  # 00:01 -> 00:02
_NUMBER = re.compile(r"[0-9]{1,9}")
_WRITE = "Write times as 00:01:02,500 --> 00:01:05,000."


@dataclass
class Block:
    number: int  # from the file, else counted from 1
    start: float
    stop: float
    lines: list[str]
    spoken_lines: list[str] = field(default_factory=list)  # without styles


@dataclass(frozen=True)
class CueFile:
    """Cues in file order. preamble: lines before the first. warnings: skipped cues."""

    blocks: list[Block]
    preamble: list[str]
    warnings: tuple[str, ...]


def read_blocks(text: str) -> CueFile:
    """Parse an SRT or WebVTT file. Skips cues with invalid times, or times that end before they begin, and warns.

    Raises HiggsError if no cue is left.
    """
    lines = text.lstrip("\ufeff").replace("\0", "").splitlines()
    places: list[int] = []
    for place in range(len(lines)):
        if _are_times(lines, place, places):
            places.append(place)
    if not places:
        raise HiggsError(
            "there are no cues: no line looks like 00:00:01,000 --> 00:00:03,500. Enter the text of an SRT or VTT "
            "file, or the path of one."
        )
    above: list[int | None] = []  # the lines with the cues' numbers
    numbers: list[int] = []
    for floor, place in zip([-1, *places], places, strict=False):
        expected = numbers[-1] + 1 if numbers else 1
        above.append(_number_above(lines, place, floor, expected))
        numbers.append(expected if above[-1] is None else int(lines[above[-1]]))
    ends = [place if at is None else at for at, place in zip(above[1:], places[1:], strict=True)]
    is_vtt = lines[0].startswith("WEBVTT")
    blocks, wrong = [], []
    for number, place, end in zip(numbers, places, [*ends, len(lines)], strict=True):
        body = lines[place + 1 : end]
        if is_vtt:  # a blank line ends a cue; notes or the next identifier follow
            body = body[: next((at for at, line in enumerate(body) if not line.strip()), len(body))]
        times, why = _times(lines[place])
        if why:
            wrong.append(f'Cue {number} (line {place + 1}) was left out: "{shown_name(lines[place].strip())}" {why}.')
        else:
            blocks.append(Block(number, *times, body))
    if not blocks:
        raise HiggsError(f"no usable cue is left. {wrong[0]} {_WRITE}")
    return CueFile(blocks, [] if is_vtt else lines[: places[0]], few(wrong, most=5))


def _are_times(lines: Sequence[str], place: int, places: Sequence[int]) -> bool:
    """True if a line has a cue's times, even broken or with a wrong arrow. places: of the times before it.

    Inside a cue they are text: directly below a numbered cue's times, or without what precedes a cue.
    """
    line, before = lines[place].strip()[:_LOOK], lines[place - 1].strip() if place else ""
    may_begin = not before or _NUMBER.fullmatch(before) is not None
    if "-->" not in lines[place]:
        return may_begin and line[:1].isdigit() and _LIKE_TIMES.match(line) is not None
    if places and places[-1] == place - 1 and place > 1 and _NUMBER.fullmatch(lines[place - 2].strip()):
        return False
    return _TIMES.match(line) is not None or (may_begin and any(map(str.isdigit, line)))


def _number_above(lines: Sequence[str], place: int, floor: int, expected: int) -> int | None:
    """Return the line of a cue's number above its times at `place`: after a blank line, or with the expected number.

    floor: line of the previous cue's times.
    """
    at = place - 1
    while at > floor and not lines[at].strip():
        at -= 1
    if at <= floor or not _NUMBER.fullmatch(lines[at].strip()):
        return None
    return at if at == 0 or not lines[at - 1].strip() or int(lines[at]) == expected else None


def _times(line: str) -> tuple[tuple[float, float], str]:
    """Return ((start, stop), problem)."""
    match = _TIMES.match(line.strip()[:_LOOK])
    if match is None:
        return (0.0, 0.0), "is not a valid pair of times"
    start, stop = (
        int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{rest or 0}")
        for hours, minutes, seconds, rest in (match.groups()[:4], match.groups()[4:])
    )
    return (start, stop), "ends before it starts" if stop < start else ""
