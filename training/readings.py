"""Spell out figures, one written word at a time: 7:45 -> seven forty five."""

from __future__ import annotations

import re

from engine.prompt import english_numbers
from engine.prompt.english_numbers import cardinal


def in_words(number: int) -> str:
    """Spell out an integer without hyphens: 1250 -> one thousand two hundred fifty."""
    return cardinal(number).replace("-", " ")


def _pair(number: int) -> str:
    """Spell out the last two figures of a time or a year."""
    return f"oh {cardinal(number)}" if number < 10 else in_words(number)


def year(number: int) -> str:
    """Spell out four figures as a year, if they can be one."""
    first, second = divmod(number, 100)
    if number // 10 in (200, 100, 110) or not 1100 <= number <= 2099:
        return in_words(number)
    return f"{in_words(first)} {_pair(second) if second else 'hundred'}"


def ordinal(number: int) -> str:
    """21 -> twenty first."""
    return english_numbers.ordinal(number).replace("-", " ")


def _money(match: re.Match) -> str:
    dollars, cents = int(match[1].replace(",", "")), match[2]
    told = f"{in_words(dollars)} dollar{'s' * (dollars != 1)}"
    return f"{told} {in_words(int(cents))} cents" if cents else told


def _time(match: re.Match) -> str:
    hour, minute = int(match[1]), int(match[2])
    return f"{in_words(hour)} {_pair(minute)}" if minute else f"{in_words(hour)} o'clock"


def digits(match: re.Match) -> str:
    """Spell out each figure."""
    return english_numbers.digits(match[0])


_RULES = (
    (r"\$(\d[\d,]*)(?:\.(\d\d))?", _money),
    (r"\b(\d{1,2}):(\d\d)\b", _time),
    (r"\b\d{3}-\d{4}\b", digits),
    (r"\b\d{1,3}(?:,\d{3})+\b", lambda m: in_words(int(m[0].replace(",", "")))),
    (r"\b(\d+)\.(\d+)\b", lambda m: f"{in_words(int(m[1]))} point {english_numbers.digits(m[2])}"),
    (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1]))),
    (r"\b\d{4}\b", lambda m: year(int(m[0]))),
    (r"\b0\d+\b", digits),
    (r"\d+", lambda m: f" {in_words(int(m[0]))} "),
    (r"%", " percent "),
    (r"\b([ap])\.m\b\.?", r"\1 m"),
)


def readable(word: str) -> str:
    """Spell out the figures in one or more written words. Text between spaces stays together."""
    for pattern, said in _RULES:
        word = re.sub(pattern, said, word)
    return " ".join(word.split())
