"""The lines of training and of the held-out test: text, pauses, speed.

The two splits share no sentence by construction: a sentence's letters decide its split, and the sentences of
text/held_out.txt are never trained on. Sources: own sentence forms (templates.py) and WordNet's examples (wordnet.py).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from functools import cache

from . import paragraphs, templates, written
from .corpus_line import PAUSES, Line

SPLITS = ("train", "heldout")
HELD_OUT_EACH = 40  # one sentence in this many is held out
MOST_WORDS = 25
# Stretch of the duration.
SPEEDS = {
    "<|prosody:speed_very_slow|>": 1 / 0.65,
    "<|prosody:speed_slow|>": 1 / 0.85,
    "<|prosody:speed_fast|>": 1 / 1.2,
    "<|prosody:speed_very_fast|>": 1 / 1.4,
}
_PAUSE, _LONG_PAUSE = PAUSES
TAG = re.compile(r"<\|[^|]*\|>")
_QUESTION = re.compile(r"(who|what|where|when|why|how|which|can|could|will|would|do|does|did|is|are|was|were) ", re.I)
# Share of each kind of line.
_SPEED_SHARE, _PAUSE_SHARE = 0.08, 0.18
_BETWEEN = 0.6  # share of training pauses between two sentences, where every reader pauses a little anyway
_HELD_OUT_SHARES = 0.06, 0.07  # unchanged: results are compared by these sentences
_TALES = 0.67  # of training, above 0.55
_PARAGRAPHS, _WRITTEN, _SHOUTED = 0.3, 0.08, 0.02  # of training lines


def split_of(sentence: str) -> str:
    """Return a sentence's split, ignoring case, punctuation and tags."""
    letters = letters_of(sentence)
    if letters in _fixed_letters() or zlib.crc32(letters.encode()) % HELD_OUT_EACH == 0:
        return "heldout"
    return "train"


def lines(split: str, count: int, seed: int = 0) -> list[Line]:
    """Return `count` different lines of a split. Another seed changes the order and the filled-in words."""
    assert split in SPLITS
    rng = random.Random(f"{split} {seed}")
    found: dict[str, Line] = {}
    stream = _stream(split, rng)
    while len(found) < count:
        line = _line(stream, split, rng)
        found.setdefault(line.text, line)
    return list(found.values())


def _line(stream: Iterator[str], split: str, rng: random.Random) -> Line:
    """Return a sentence, or in training also a paragraph or what is not said as written."""
    kind = rng.random() if split == "train" else 1.0
    if kind < _PARAGRAPHS:
        return paragraphs.paragraph(lambda: next(stream), rng)
    if kind < _PARAGRAPHS + _WRITTEN + _SHOUTED:
        is_form = kind < _PARAGRAPHS + _WRITTEN
        text = written.sentence(rng) if is_form else written.shouted(next(stream), rng)
        text = text if rng.random() < 0.4 else written.said(text)
        return Line(text, (written.by_word(text),))
    return _voiced(next(stream), stream, split, rng)


def sentences(split: str, count: int, seed: int = 0) -> list[str]:
    """Return the texts of `lines`."""
    return [line.text for line in lines(split, count, seed)]


def _stream(split: str, rng: random.Random) -> Iterator[str]:
    """Yield sentences without tags, for ever: WordNet's, our forms, and in training also bare words."""
    fixed = list(_fixed()) if split == "heldout" else []
    natural: list[str] = []
    while True:
        kind = rng.random()
        if fixed and kind < 0.2:
            yield fixed.pop(rng.randrange(len(fixed)))
            continue
        if kind < 0.55:
            if not natural:
                natural = list(_examples(split))
                rng.shuffle(natural)
            sentence = _finished(natural.pop(), rng)
        elif kind < 0.92 or split == "heldout":
            forms = templates.tales() if split == "train" and kind < _TALES else ()
            sentence = templates.sentence(rng, forms)
            while split_of(sentence) != split:
                sentence = templates.sentence(rng, forms)
        else:
            sentence = _words(rng)
        fewest = 1 if split == "train" else 4
        if split_of(sentence) == split and fewest <= len(sentence.split()) <= MOST_WORDS:
            yield sentence


@cache
def _examples(split: str) -> tuple[str, ...]:
    texts = (templates.TEXT / "examples.txt").read_text(encoding="utf-8").splitlines()
    return tuple(text for text in texts if split_of(text) == split)


@cache
def _fixed() -> tuple[str, ...]:
    return tuple((templates.TEXT / "held_out.txt").read_text(encoding="utf-8").splitlines())


@cache
def _fixed_letters() -> frozenset[str]:
    return frozenset(letters_of(text) for text in _fixed())


def letters_of(sentence: str) -> str:
    """Return letters and digits without case and tags, equal for sentences that sound alike."""
    return "".join(re.findall(r"[a-z0-9]", TAG.sub("", sentence).lower()))


def _finished(text: str, rng: random.Random) -> str:
    """Finish an example as a sentence, mostly: with a capital and a closing mark."""
    if rng.random() < 0.08:
        return text
    if text[-1] not in ".?!":
        text += "?" if _QUESTION.match(text) and rng.random() < 0.9 else rng.choice("." * 24 + "!")
    return text[0].upper() + text[1:]


def _words(rng: random.Random) -> str:
    """Return a few words without a sentence, so that rare ones occur too; often just one or two."""
    count = rng.choice((1, 1, 2, 3, 5, 7, 9))
    text = rng.choice((" ", " ", ", ")).join(templates.word(rng) for _ in range(count))
    return text[0].upper() + text[1:] + rng.choice(("", ".", ".", "!", "?"))


def _voiced(sentence: str, stream: Iterator[str], split: str, rng: random.Random) -> Line:
    """Turn a sentence into a line: most plain, some with a pause inside or after it, some faster or slower."""
    kind = rng.random()
    speed, pause = (_SPEED_SHARE, _PAUSE_SHARE) if split == "train" else _HELD_OUT_SHARES
    if kind < pause:
        if split == "train" and rng.random() < _BETWEEN:
            return _paused(sentence, next(stream), split, rng)
        places = [match.end() for match in re.finditer(r"[,;.?!:] ", sentence)]
        places = places or [match.end() for match in re.finditer(r"\w (?=\w)", sentence)]
        if not places:
            return Line(sentence, (sentence,))
        cut = rng.choice(places)
        return _paused(sentence[:cut].strip(), sentence[cut:], split, rng)
    if kind < pause + speed:
        tag = rng.choice(list(SPEEDS))
        return Line(tag + rng.choice(("", "", " ")) + sentence, (sentence,), (), SPEEDS[tag])
    return Line(sentence, (sentence,))


def _paused(first: str, second: str, split: str, rng: random.Random) -> Line:
    """Join two parts with a pause."""
    tag = rng.choice((_PAUSE, _PAUSE if split == "heldout" else _LONG_PAUSE, _LONG_PAUSE))
    if split == "train":
        tag = rng.choice((_PAUSE, _LONG_PAUSE))
    text = first + rng.choice((" ", " ", "")) + tag + rng.choice((" ", " ", "")) + second
    return Line(text, (first, second), (PAUSES[tag],))
