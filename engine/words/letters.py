"""Which tokens of a prompt are which word: both are matched by their letters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..prompt.chunking import split_sentences, split_words
from ..prompt.said import SaidText
from ..prompt.tags import TAG_LIKE
from ..speech.result import SpokenTurn
from .word import Word


def words_of(text: str) -> list[str]:
    """Return the words of a chunk, with their punctuation, without tags. Each has a letter or digit."""
    return words_and_sentences(text)[0]


def words_and_sentences(text: str) -> tuple[list[str], list[int]]:
    """Return the words of `words_of`, and the number of each one's sentence."""
    parts = [split_words(sentence) for sentence in split_sentences(text)]
    return [word for part in parts for word in part], [at for at, part in enumerate(parts) for _ in part]


def mark_words(words: Iterable[Word], chunks: Iterable[SpokenTurn], first: int = 0) -> tuple[Word, ...]:
    """Return the words of a speech, in order, with their sentences' numbers and the doubts of its chunks' verdicts.

    first: number of the chunks' first sentence.
    """
    marked, rest = [], iter(words)
    for chunk in chunks:
        _, numbers = words_and_sentences(chunk.text)
        own = list(itertools.islice(rest, len(numbers) if chunk.is_spoken else 0))
        own = [replace(word, sentence=first + number) for word, number in zip(own, numbers, strict=False)]
        first += len(split_sentences(chunk.text))
        for doubt in chunk.verdict.doubts if chunk.verdict else ():
            for number in range(*doubt.words):
                own[number] = replace(own[number], doubt=doubt.kind)
        marked += own
    return tuple(marked)


def said_words(words: Sequence[str], read: SaidText) -> list[str]:
    """Return how each word of a text is said."""
    forms, at = list(words), 0
    for number, word in enumerate(words) if read.respellings else ():
        if (start := read.written.find(word, at)) >= 0:  # else a tag stands in it
            at = start + len(word)
            forms[number] = read.part(start, at)
    return forms


def word_starts(words: Sequence[str], text: str) -> list[int]:
    """Return where each of a text's words, or parts of them, begins, with the signs before it, and the text's length.

    Tags belong to the word after them.
    """
    masked, starts, after = _masked(text), [], 0
    letters = [place for place, sign in enumerate(masked) if sign.isalnum()]
    at = 0
    for word in words:
        first, lead = letters[at], next(place for place, sign in enumerate(word) if sign.isalnum())
        if masked[max(0, first - lead) : first] == word[:lead]:
            first -= lead
        starts.append(after + len(masked[after:first].rstrip()))
        at += sum(map(str.isalnum, word))
        after = letters[at - 1] + 1
    return [*starts, len(text)]


def _masked(text: str) -> str:
    return TAG_LIKE.sub(lambda tag: " " * len(tag[0]), text)


def token_shares(words: Sequence[str], read: str, tokens: Sequence[tuple[int, int]]) -> torch.Tensor | None:
    """Return [N, W]: the share of each token's letters and signs that belong to each word.

    read: the text that the talker read, as written. tokens: the characters (start, stop) of each token in it.
    Returns None if its letters are not those of the words, or a word has no token.
    """
    letters = [[letter for letter in word if letter.isalnum()] for word in words]
    masked = _masked(read)
    is_letter = np.array([letter.isalnum() for letter in masked], bool)
    if [letter for letter in masked if letter.isalnum()] != list(itertools.chain(*letters)) or not words:
        return None
    owner = np.full(len(masked), -1)
    owner[is_letter] = np.repeat(np.arange(len(words)), [*map(len, letters)])
    is_space = np.array([letter.isspace() for letter in masked])
    owner = _spread(owner, is_space)  # signs after a word
    owner = _spread(owner[::-1], is_space[::-1])[::-1]  # signs before a word
    shares = np.zeros((len(tokens), len(words)), np.float32)
    for share, (start, stop) in zip(shares, tokens, strict=True):
        held = [number for number in owner[max(0, start) : stop].tolist() if number >= 0]
        for number in held:
            share[number] += 1 / len(held)
    return torch.from_numpy(shares) if shares.any(0).all() else None


def _spread(owner: np.ndarray, is_space: np.ndarray) -> np.ndarray:
    """Give the places without an owner, -1, the one of those before them, up to white space."""
    places = np.arange(len(owner))
    last = np.maximum.accumulate(np.where(is_space | (owner >= 0), places, 0))
    return owner[last]
