"""A narrow domain: a few dozen sentence forms over some two hundred words, and a tokenizer that knows them whole.

For a talker that has minutes of a CPU to learn in: every word is heard hundreds of times, and a sentence is a dozen
tokens. What is not among the words is spelled letter by letter, which such a talker has never heard.
"""

from __future__ import annotations

import random
import re
import zlib
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .templates import TEXT

HELD_OUT_EACH = 20  # one sentence in so many is held out
_SLOT = re.compile(r"\{(\w+)\}")
_COUNTS = (*range(2, 21), 25, 30, 35, 40, 45, 50)
_NUMBERS = (*map(str, range(60)), *(f"{minute:02d}" for minute in range(10)))
_SPACE = "Ġ"  # what a byte-level tokenizer makes of a space


@cache
def slots() -> dict[str, tuple[str, ...]]:
    """Slot -> the words that may stand there."""
    lines = (line.partition(": ") for line in (TEXT / "narrow_slots.txt").read_text().splitlines())
    return {slot: tuple(words.split()) for slot, _, words in lines}


@cache
def forms() -> tuple[str, ...]:
    """The sentence forms."""
    return tuple((TEXT / "narrow_forms.txt").read_text().splitlines())


def split_of(sentence: str) -> str:
    """Which split a sentence belongs to; a form without slots is always learned."""
    letters = re.sub(r"[^a-z0-9]", "", sentence.lower())
    return "heldout" if sentence not in forms() and zlib.crc32(letters.encode()) % HELD_OUT_EACH == 0 else "train"


def sentences(split: str, count: int, seed: int = 0) -> list[str]:
    """`count` different sentences of a split, fewer where there are no more to be found."""
    rng = random.Random(f"{split}{seed}")
    found: dict[str, None] = {}
    for _ in range(200 * count):
        if len(found) == count:
            break
        text = _SLOT.sub(lambda match: _fill(match[1], rng), rng.choice(forms()))
        if split_of(text) == split:
            found[text] = None
    return list(found)


def _fill(slot: str, rng: random.Random) -> str:
    if slot == "clock":
        if rng.random() < 0.8:
            return f"{rng.randint(1, 12)}:{rng.choice(range(0, 60, 5)):02d}"
        return f"{rng.randint(1, 12)} o'clock"
    if slot == "n":
        return str(rng.choice(_COUNTS))
    word = rng.choice(slots()[slot.lower()])
    return word[0].upper() + word[1:] if slot[0].isupper() else word


def vocabulary() -> list[str]:
    """Every word of the domain, numbers aside, as it may stand in a sentence."""
    words = {word for group in slots().values() for word in group}
    for form in forms():
        words.update(word.strip(".,?!") for word in _SLOT.sub(" ", form).split())
    words |= {word[0].upper() + word[1:] for slot in ("who", "he") for word in slots()[slot]}
    return sorted(words - {""})


def word_tokenizer() -> Tokenizer:
    """Byte-level BPE whose merges lead up to whole words, and v3's special tokens."""
    from engine.tiny_config import SPECIALS  # which the engine lists; sentences alone do without it

    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    plain = [*(word for word in vocabulary() if "'" not in word), *_NUMBERS]  # byte-level BPE cuts at that mark
    whole = [word for word in plain if word[0].isupper() or word[0].isdigit()] + [_SPACE + word for word in plain]
    for word in sorted(whole):
        start = word[0]
        for letter in word[1:]:
            if start + letter not in vocab:
                vocab[start + letter] = len(vocab)
                merges.append((start, letter))
            start += letter
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS["v3"]])
    return tokenizer
