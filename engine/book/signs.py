"""Removes paired formatting marks, such as *this* and _this_, in linear time."""

from __future__ import annotations

import re

_STARS = {mark: re.compile(rf"{re.escape(mark)}(?<=\S{re.escape(mark)})(?<!\\{re.escape(mark)})")
          for mark in ("***", "**", "*", "~~", "```", "``", "`")}  # fmt: skip
_LOW_LINES = {mark: re.compile(rf"{mark}(?<=\S{mark})(?!\w)") for mark in ("___", "__", "_")}


def without_stars(text: str) -> str:
    """Remove *, ~~ and ` around words."""
    return _without(text, r"(?<!\\)", _STARS)


def without_low_lines(text: str) -> str:
    """Remove _ around words."""
    return _without(text, r"(?<![\w\\])", _LOW_LINES)


def _without(text: str, before: str, closings: dict[str, re.Pattern]) -> str:
    """Remove paired marks. An unclosed mark is searched once.

    closings: mark -> its closing pattern, longer marks first.
    """
    kept, at, signs = [], 0, [sign for sign in closings if sign in text]
    while signs and (opening := re.compile(rf"{before}({'|'.join(map(re.escape, signs))})(?=\S)").search(text, at)):
        closing = closings[opening[1]].search(text, opening.end() + 1)
        if closing is None:
            signs.remove(opening[1])
            continue
        kept += [text[at : opening.start()], text[opening.end() : closing.start()]]
        at = closing.end()
    return "".join([*kept, text[at:]])
