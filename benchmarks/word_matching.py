"""A recogniser's word times, matched to the words that are known to be said."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import torch

from engine import SAMPLE_RATE, SpokenTurn, Word
from engine.words.boundaries import pauses_of
from engine.words.letters import words_of

_LEAST_MATCHED = 0.5  # of a word's letters


class HeardWord(NamedTuple):
    """A word as recognised, with its times in seconds."""

    text: str
    start: float
    end: float


def placed(turn: SpokenTurn, wav: torch.Tensor, heard: Sequence[HeardWord]) -> list[Word]:
    """Return the words of a chunk at the times of what was heard in its wav [n]."""
    words, (first, last, _) = words_of(turn.text), pauses_of(wav)
    times = match_times(words, heard, first / SAMPLE_RATE, last / SAMPLE_RATE)
    begin = turn.start / SAMPLE_RATE
    return [
        Word(text, begin + start, begin + end, turn.speaker, "whisper")
        for text, (start, end) in zip(words, times, strict=True)
    ]


def match_times(
    words: Sequence[str], heard: Sequence[HeardWord], first: float, last: float
) -> list[tuple[float, float]]:
    """Return the start and end of each known word, in order and between `first` and `last`, in seconds.

    A word of which half the letters are heard has the times of these. Others share the time between their neighbours
    by their letters.
    """
    known = [letter for word in words for letter in _letters(word)]
    spoken: list[tuple[str, float, float]] = []
    for word in heard:
        letters = _letters(word.text)
        each = (word.end - word.start) / max(1, len(letters))
        spoken += [(letter, word.start + at * each, word.start + (at + 1) * each) for at, letter in enumerate(letters)]
    found: dict[int, tuple[float, float]] = {}
    matcher = SequenceMatcher(None, known, [letter for letter, _, _ in spoken], autojunk=False)
    for block in matcher.get_matching_blocks():
        found |= {block.a + at: spoken[block.b + at][1:] for at in range(block.size)}
    times: list[tuple[float, float] | None] = []
    at, edge = 0, first
    for word in words:
        count = len(_letters(word))
        own = [found[place] for place in range(at, at + count) if place in found]
        at += count
        if len(own) >= _LEAST_MATCHED * count and (start := max(own[0][0], edge)) < (end := min(own[-1][1], last)):
            times.append((start, end))
            edge = end
        else:
            times.append(None)
    return _filled(words, times, first, last)


def _filled(
    words: Sequence[str], times: Sequence[tuple[float, float] | None], first: float, last: float
) -> list[tuple[float, float]]:
    filled: list[tuple[float, float]] = []
    for number, own in enumerate(times):
        if own is None:
            begin = filled[-1][1] if filled else first
            after = next((place for place in range(number, len(times)) if times[place] is not None), len(times))
            known = times[after] if after < len(times) else None
            stop, letters = known[0] if known else last, sum(len(_letters(word)) for word in words[number:after])
            own = begin, begin + (stop - begin) * len(_letters(words[number])) / letters
        filled.append(own)
    return filled


def _letters(word: str) -> list[str]:
    return [letter for letter in word.casefold() if letter.isalnum()]
