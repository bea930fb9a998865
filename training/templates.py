"""Our own sentence forms, filled with words: times, numbers, places, commands, questions, tales."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

TEXT = Path(__file__).parent / "text"
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+?)\d?\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|u(?!ni|s[eu]|r[aeiou])|8|11\b|18\b)")
_FORMS = {
    "noun": ("noun", "nouns"),
    "verb": ("verb", "verbs", "verbed", "verbing"),
    "adj": ("adj",),
    "adv": ("adv",),
}
_OBJECTS = ("me", "you", "him", "her", "us", "them", "people", "children")
_SMALL = "two three four five six seven eight nine ten eleven twelve".split()
_QUARTERS = ("half past", "a quarter past", "a quarter to", "ten past", "twenty to", "five to")


@cache
def lists() -> dict[str, tuple[str, ...]]:
    """Map slots to fillers: words of one part of speech from the commonest to the rarest."""
    found: dict[str, list[str]] = {slot: [] for slots in _FORMS.values() for slot in slots}
    for line in (TEXT / "words.txt").read_text(encoding="utf-8").splitlines():
        part, *forms = line.split()
        for slot, form in zip(_FORMS[part], forms, strict=True):
            found[slot].append(form)
    for line in (TEXT / "slots.txt").read_text(encoding="utf-8").splitlines():
        slot, _, values = line.partition(": ")
        found[slot] = [value.replace("|", " ") for value in values.split()]
    found["object"] = list(_OBJECTS)
    return {slot: tuple(values) for slot, values in found.items()}


@cache
def _forms() -> tuple[str, ...]:
    """Return the sentence forms: [this|or that] is a choice, {slot} a word."""
    return tuple((TEXT / "templates.txt").read_text(encoding="utf-8").splitlines())


@cache
def tales() -> tuple[str, ...]:
    """Return further forms, for training only: dialogue and story-telling."""
    return tuple((TEXT / "tales.txt").read_text(encoding="utf-8").splitlines())


def sentence(rng: random.Random, forms: tuple[str, ...] = ()) -> str:
    """Return a sentence in one of `forms`, by default the general ones."""
    text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), rng.choice(forms or _forms()))
    while _SLOT.search(text):
        text = _SLOT.sub(lambda match: _fill(match[1], rng), text, count=1)
    text = _ARTICLE.sub(r"\1n ", " ".join(text.split()))
    text = re.sub(r" (?=[.,!?])", "", text).replace("m..", "m.")
    first = text[0] == '"'
    return text[:first] + text[first].upper() + text[first + 1 :]


def word(rng: random.Random) -> str:
    """Return any word, in any of its forms."""
    return _pick(rng, lists()[rng.choice([slot for slots in _FORMS.values() for slot in slots])])


def _pick(rng: random.Random, words: tuple[str, ...]) -> str:
    # common words are likelier, but every word occurs
    return words[int(len(words) * rng.random() ** 1.4)]


def _fill(slot: str, rng: random.Random) -> str:
    if slot in _NUMBERS:
        return _NUMBERS[slot](rng)
    known = lists()
    if slot in known:
        is_word = any(slot in slots for slots in _FORMS.values())
        return _pick(rng, known[slot]) if is_word else rng.choice(known[slot])
    filled = _fill(slot.lower(), rng)  # {Noun} begins a sentence
    return filled[0].upper() + filled[1:]


def _clock(rng: random.Random) -> str:
    hour, minute = rng.randint(1, 12), rng.randint(0, 59)
    kind = rng.random()
    if kind < 0.2:
        return f"{hour} o'clock"
    if kind < 0.35:
        return f"{rng.choice(_QUARTERS)} {_SMALL[max(0, hour - 2)]}"
    if kind < 0.4:
        return rng.choice(("noon", "midnight"))
    half = rng.choice(("", "", "", " a.m.", " p.m.", " in the morning", " in the evening"))
    return f"{hour}:{minute:02d}{half}"


def _count(rng: random.Random) -> str:
    high = rng.choice((12, 20, 99, 99, 100, 999))
    return str(rng.randint(2, high))


def _big(rng: random.Random) -> str:
    number = rng.choice((rng.randint(1, 99) * 100, rng.randint(1000, 9999), rng.randint(2, 900) * 1000))
    return f"{number:,}" if rng.random() < 0.8 else rng.choice((f"{rng.randint(2, 90)} million", "two thousand"))


def _nth(rng: random.Random) -> str:
    day = rng.randint(1, 31)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day not in (11, 12, 13) else 0, "th")
    return f"{day}{ending}"


def _price(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return f"${rng.randint(2, 200)}"
    if kind < 0.7:
        return f"${rng.randint(2, 99)}.{rng.choice((25, 50, 75, 95, 99))}"
    return f"{rng.randint(2, 500)} {rng.choice(('dollars', 'pounds', 'euros'))}"


def _percent(rng: random.Random) -> str:
    number = str(rng.randint(2, 99)) + rng.choice(("", "", f".{rng.randint(1, 9)}"))
    return number + rng.choice(("%", " percent"))


def _digits(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"{rng.randint(200, 999)}-{rng.randint(0, 9999):04d}"
    return " ".join(str(rng.randint(0, 9)) for _ in range(rng.randint(3, 6)))


def roman(number: int) -> str:
    """Write a number of at most 39 as a Roman numeral."""
    tens, ones = divmod(number, 10)
    return "X" * tens + ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")[ones]


def _decimal(rng: random.Random) -> str:
    return f"{rng.randint(0, rng.choice((9, 99)))}.{rng.choice((f'{rng.randint(1, 9)}', f'{rng.randint(1, 99):02d}'))}"


def _daytime(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, rng.randint(1, 9), rng.randint(10, 59))):02d}"


def _initials(rng: random.Random) -> str:
    return rng.choice(("", " ")).join(f"{rng.choice(_CAPITALS)}." for _ in range(rng.choice((1, 2, 2, 3))))


def _phone(rng: random.Random) -> str:
    return f"({rng.randint(200, 999)}) {rng.randint(200, 999)}-{rng.randint(0, 9999):04d}"


def _date(rng: random.Random) -> str:
    month, day, of = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1900, 2035)
    return rng.choice((f"{month}/{day}/{of}", f"{of}-{month:02d}-{day:02d}"))


_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNITS = "km m cm mm mi ft kg g mg lb oz ml GB MB kHz kWh mph km/h".split()
_ACRONYMS = "USA UK EU UN FBI CIA BBC CEO ATM ID TV USB GPS DNA NASA IBM API AI PDF FAQ HTML".split()
_NUMBERS = {
    "clock": _clock,
    "decimal": _decimal,
    "daytime": _daytime,
    "initials": _initials,
    "phone": _phone,
    "date": _date,
    "roman": lambda rng: roman(rng.randint(1, 24)),
    "unit": lambda rng: rng.choice(_UNITS),
    "acronym": lambda rng: (
        rng.choice(_ACRONYMS) if rng.random() < 0.5 else "".join(rng.choices(_CAPITALS, k=rng.choice((2, 3, 3, 4))))
    ),
    "state": lambda rng: rng.choice("NY CA TX MA IL OH WA FL".split()),
    "zip": lambda rng: f"{rng.randint(10000, 99999)}",
    "version": lambda rng: f"{rng.randint(1, 12)}.{rng.randint(0, 20)}",
    "fraction": lambda rng: rng.choice(("1/2", "1/3", "1/4", "3/4", "2/3", "1 1/2", "2 1/4")),
    "host": lambda rng: f"{rng.choice('example mail home paper river'.split())}.{rng.choice('com org net'.split())}",
    "n": _count,
    "sum": _count,
    "big": _big,
    "nth": _nth,
    "price": _price,
    "percent": _percent,
    "digits": _digits,
    "digit": lambda rng: str(rng.randint(0, 9)),
    "year": lambda rng: str(rng.randint(1800, 2035)),
    "small": lambda rng: rng.choice((rng.choice(_SMALL), str(rng.randint(2, 12)))),
}
