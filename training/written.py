"""Text as people write it: figures with units, times, Roman numerals, initials, addresses, capitals, lists, headings.

What is said there comes from the engine's own table, so that the talker learns both forms: as written, and as the
engine hands it on.
"""

from __future__ import annotations

import random
import re
from functools import cache

from engine.prompt.spell_out import spell_out

from . import templates
from .phonemes import JOIN

_WORD = re.compile(r"\S+")
_TITLES = (
    "the {noun} in the {noun2}",
    "the {adj} {noun}",
    "{name} and the {noun}",
    "a {adj} {noun}",
    "{noun} and {noun2}",
)


@cache
def _forms() -> tuple[str, ...]:
    return tuple((templates.TEXT / "written.txt").read_text().splitlines())


def sentence(rng: random.Random) -> str:
    """Return a sentence with something that is not said as it is written."""
    return templates.sentence(rng, _forms())


def shouted(text: str, rng: random.Random) -> str:
    """Return a sentence in capitals, or with one or two words in them."""
    if rng.random() < 0.5:
        return text.upper()
    words = text.split()
    for place in rng.sample(range(len(words)), min(len(words), rng.choice((1, 1, 2)))):
        words[place] = words[place].upper()
    return " ".join(words)


def title(rng: random.Random) -> str:
    """Return a heading without a stop, in one of the usual forms."""
    name = templates.sentence(rng, _TITLES)
    number = rng.randint(1, 24)
    roman = templates.roman(number)
    kind = rng.choice(("Chapter", "Part", "Chapter", "Section"))
    forms = (name, name, f"{kind} {number}", f"{kind} {roman}", f"{roman}. {name}", f"{kind} {number}: {name}")
    text = rng.choice(forms)
    how = rng.random()
    return text.upper() if how < 0.25 else text.title() if how < 0.6 else text


def said(text: str) -> str:
    """Return what the engine says for a text."""
    return spell_out(text, "en").text


def by_word(text: str) -> str:
    """Return what is said with the written words still apart: those that one of them is read as are joined by JOIN.

    What several written words are read as belongs to the first of them.
    """
    found, used = [], set()
    respelled = spell_out(text, "en").respellings
    for match in _WORD.finditer(text):
        at, parts = match.start(), []
        for number, one in enumerate(respelled):
            if one.stop < match.start() or one.start >= match.end() or (one.stop == match.start() and number in used):
                continue
            parts.append(text[at : max(at, one.start)])
            if number not in used:
                parts.append(one.spelling)
                used.add(number)
            at = max(at, min(match.end(), one.stop))
        parts.append(text[at : match.end()])
        found.append(JOIN.join("".join(parts).split()) or JOIN)
    return " ".join(found)
