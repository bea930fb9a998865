"""Paragraphs of training: as long as the engine's chunks, and made so that a reader may lose the place.

Sentences that are like one another or come again, long ones of several clauses, lists and titles.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from . import written
from .corpus_line import PAUSES, Line

LETTERS = (90, 410)  # of a paragraph: 6 to 29 s
_PART = 170  # letters that Kokoro speaks at once, about
_GAPS = (0.35, 0.7)  # seconds between two of these
_LINKS = (
    ", and ", ", and ", " and ", ", but ", ", so ", " while ", ", because ", "; ", " and then ", ", and after that ",
    ", for ", ", which meant that ", " when ", ", as if ", " until ", ": ", ", or so they said, and ",
)  # fmt: skip
_COUNTS = ("First", "Second", "Third", "Then", "After that", "Next", "Finally", "At last")
_TITLED, _PLAIN, _LINKED, _ALIKE = 0.12, 0.25, 0.3, 0.37  # share with a title; of the kinds, the rest being lists
_WRITTEN, _RAW = 0.12, 0.4  # share of sentences with such forms, and of paragraphs that keep them as written

Draw = Callable[[], str]


def paragraph(draw: Draw, rng: random.Random) -> Line:
    """Return a paragraph of sentences that `draw` gives."""
    sentences = _sentences(draw, rng)
    is_raw = rng.random() < _RAW
    texts = sentences if is_raw else [written.said(one) for one in sentences]
    spoken = [written.by_word(one) for one in texts]
    parts: list[tuple[list[str], list[str]]] = [([], [])]
    for text, one in zip(texts, spoken, strict=True):
        if parts[-1][0] and sum(map(len, parts[-1][0])) + len(text) > _PART:
            parts.append(([], []))
        parts[-1][0].append(text)
        parts[-1][1].append(one)
    text = " ".join(" ".join(own) for own, _ in parts)
    told = [" ".join(own) for _, own in parts]
    pauses = [rng.uniform(*_GAPS) for _ in told[1:]]
    if rng.random() < _TITLED:
        name, tag = written.title(rng), rng.choice(tuple(PAUSES))
        name = name if is_raw else written.said(name)
        text, told = f"{name} {tag} {text}", [written.by_word(name) + ".", *told]
        pauses = [PAUSES[tag], *pauses]
    return Line(text, tuple(told), tuple(pauses))


def _sentences(draw: Draw, rng: random.Random) -> list[str]:
    kind, found = rng.random(), []
    letters = rng.uniform(*LETTERS)
    while sum(map(len, found)) < letters:
        one = written.sentence(rng) if rng.random() < _WRITTEN else draw()
        if kind < _PLAIN:
            found.append(one)
        elif kind < _PLAIN + _LINKED:
            found.append(_linked(one, draw, rng))
        elif kind < _PLAIN + _LINKED + _ALIKE:
            found.append(_alike(found, one, rng) if found and rng.random() < 0.6 else one)
        else:
            found.append(_listed(len(found), one, draw, rng))
    while len(found) > 1 and sum(map(len, found)) > LETTERS[1]:
        found.pop()
    return found


def _linked(one: str, draw: Draw, rng: random.Random) -> str:
    """Make one sentence of two or three."""
    for _ in range(rng.choice((1, 1, 2))):
        more = draw()
        if one[-1] not in ".?!" or '"' in one + more:
            return one
        one = one.rstrip(".?!") + rng.choice(_LINKS) + (more if more.startswith("I ") else more[0].lower() + more[1:])
    return one


def _alike(found: list[str], one: str, rng: random.Random) -> str:
    """Return an earlier sentence again, or one that shares words with it, often those it begins with."""
    earlier = found[-1] if rng.random() < 0.6 else rng.choice(found)
    old, new = earlier.split(), one.split()
    kind, size = rng.random(), rng.randint(2, max(2, len(old) - 1))
    if kind < 0.15 or len(old) < 4 or len(new) < 3:
        return earlier
    if kind < 0.55:  # the same beginning
        words = [*old[:size], *new[-rng.randint(1, len(new) - 1) :]]
        words[:size] = [word.rstrip(".?!") for word in words[:size]]
    elif kind < 0.75:  # one word is another
        words, place = list(old), rng.randrange(1, len(old) - 1)
        words[place] = new[rng.randrange(1, len(new) - 1)].strip('.,?!"') if len(new) > 2 else words[place]
    else:  # the same end
        words = [*(word.rstrip(".?!") for word in new[: rng.randint(1, len(new) - 1)]), *old[-size:]]
    return " ".join(words).replace('"', "")


def _listed(count: int, one: str, draw: Draw, rng: random.Random) -> str:
    """Return a sentence of a series, or one that repeats its words in a row."""
    kind = rng.random()
    if kind < 0.5:
        opening = _COUNTS[min(count, len(_COUNTS) - 1)]
        return f"{opening}{rng.choice((', ', ': ', ' '))}{one[0].lower()}{one[1:]}"
    words = [word.strip('.,?!"') for word in one.split()]
    start = " ".join(words[: rng.randint(1, 3)])
    others = [" ".join(word.strip('.,?!"').lower() for word in draw().split()[: rng.randint(2, 4)]) for _ in range(3)]
    return (
        f"{start} " + ", ".join(others[:2]) + rng.choice((", and ", " and ", ", or ", " and again ")) + others[2] + "."
    )
