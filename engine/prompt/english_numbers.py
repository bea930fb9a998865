"""English number words."""

from __future__ import annotations

import re

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ORDINALS["twelve"] = "twelfth"
_SIZES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_MOST = 10**15  # longer numbers are read digit by digit
_ROMAN = dict(zip("IVXLC", (1, 5, 10, 50, 100), strict=True))
_ROMAN_NUMBER = re.compile(r"C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")


def cardinal(number: int) -> str:
    """Return 1250 as "one thousand two hundred fifty"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    if number >= _MOST:
        return digits(str(number))
    size, name = next((size, name) for size, name in _SIZES if number >= size)
    rest = f" {cardinal(number % size)}" if number % size else ""
    return f"{cardinal(number // size)} {name}{rest}"


def ordinal(number: int) -> str:
    """Return 21 as "twenty-first"."""
    head, last = re.split(r"(?=[a-z]+$)", cardinal(number), maxsplit=1)
    return head + (_ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"))


def digits(written: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in written if digit.isdigit())


def pair(written: str) -> str:
    """Return the last two digits of a time or a year: "05" is "oh five"."""
    return f"oh {_ONES[int(written)]}" if written[0] == "0" else cardinal(int(written))


def year(number: int) -> str:
    """Return four digits as they are read in a year or a street: 1905 is "nineteen oh five"."""
    first, second = divmod(number, 100)
    is_count = not 1000 <= number <= 9999 or (number > 2099 and (second or first % 10 == 0))
    if is_count or number // 10 in (100, 200):
        return cardinal(number)
    return f"{cardinal(first)} {pair(f'{second:02}') if second else 'hundred'}"


def amount(written: str) -> str:
    """Return a number as written, with thousands' commas or blanks and a decimal point, in words."""
    whole, point, rest = re.sub("[, ]", "", written).partition(".")
    is_code = len(whole) > 15 or (len(whole) > 1 and whole[0] == "0")
    words = digits(whole) if is_code or not whole else cardinal(int(whole))
    return f"{words} point {digits(rest)}".strip() if point else words


def plural(word: str) -> str:
    """Return the plural of a number word: "twenties", "sixes"."""
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("x") else f"{word}s"


def roman(letters: str) -> int:
    """Return the value of a Roman numeral below 400, or 0."""
    if not letters or not _ROMAN_NUMBER.fullmatch(letters):
        return 0
    values = [_ROMAN[letter] for letter in letters]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))
