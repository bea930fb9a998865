"""Marks in a text: of notes, as raised digits and [1], told from powers; and of formatting, as *this* and _this_."""

from __future__ import annotations

import re
from collections import Counter

LOOK_BACK = 16  # characters before a mark that decide
RAISED = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
# Behind a unit, a formula or a number that is not a year, a raised digit is a power: m², mc², 10².
_POWER = re.compile(
    r"(?:(?<!\w)(?:[^\W\d_aAI]|[^\W\d_aeiouyAEIOUY]{2}|[A-Z]{2}|[kcmdµ]m)|(?<![\d.,])(?!(?:1\d|20)\d\d$)[\d.,]*\d)$"
)
_FORMULA = re.compile(r"(?<!\w)[aAI]\0\s?[+\u2212=\u00b7\u00d7*/-]|[+\u2212=\u00b7\u00d7*/-]\s?[aAI]\0")  # a² + b² = c²
_MARK = re.compile(r"\[\d{1,3}\]|(?<=[\w.,;:!?…\"'”’»)])[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]{1,3}(?!\w)")
_STARS = {mark: re.compile(rf"{re.escape(mark)}(?<=\S{re.escape(mark)})(?<!\\{re.escape(mark)})")
          for mark in ("***", "**", "*", "~~", "```", "``", "`")}  # fmt: skip
_LOW_LINES = {mark: re.compile(rf"{mark}(?<=\S{mark})(?!\w)") for mark in ("___", "__", "_")}


def is_power(before: str, after: str) -> bool:
    """True if a raised number belongs to the word before or after it, or stands at the beginning."""
    is_alone = not before or before[-1].isspace() or after[:1].isalpha()
    return is_alone or _POWER.search(before) is not None or _FORMULA.search(f"{before}\0{after[:2]}") is not None


def without_marks(text: str, left_out: Counter[str]) -> str:
    """Remove note marks that are written as [1] or raised digits. Counts them in `left_out`."""

    def judge(match: re.Match) -> str:
        before, after = text[max(0, match.start() - LOOK_BACK) : match.start()], text[match.end() : match.end() + 2]
        if match[0][0] != "[" and is_power(before, after):
            return match[0]
        left_out["note mark"] += 1
        return ""

    return _MARK.sub(judge, text)


def summary_of(left_out: Counter[str]) -> list[str]:
    """Return what was left out, for users: "1 note", "2 notes"."""
    return [f"{number:,} {kind}{'' if number == 1 else 's'}" for kind, number in left_out.items()]


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
