"""From the first frame of each word to its start and end in the sound. Ends before pauses are exact."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..audio.levels import silences
from ..core.config import FRAME_RATE, SAMPLE_RATE
from ..speech.result import SpokenTurn
from .word import Word

_FRAME = SAMPLE_RATE // FRAME_RATE
LEAST_PAUSE = round(0.06 * SAMPLE_RATE)  # shorter silences are stops inside words
_NEAR = 3 * _FRAME  # between a pause and the boundary of words that it belongs to
_BETWEEN = _FRAME  # between words without a pause: the first of them ends before the other's first frame
_SHORTEST = _FRAME // 2  # of a word


def pauses_of(wav: torch.Tensor) -> tuple[int, int, list[tuple[int, int]]]:
    """Return the first and last sample of the speech in wav [n], and the (start, stop) samples of its pauses."""
    quiet, first, last = silences(wav), 0, len(wav)
    if quiet and quiet[0][0] == 0 and quiet[0][1] < last:
        first = quiet[0][1]
    if quiet and quiet[-1][0] > first and last - quiet[-1][1] < SAMPLE_RATE // 100:
        last = quiet[-1][0]
    inner = [(start, stop) for start, stop in quiet if first < start and stop < last and stop - start >= LEAST_PAUSE]
    return first, last, inner


def word_spans(starts: Sequence[float], wav: torch.Tensor) -> list[tuple[int, int]]:
    """Return the (start, stop) samples of each word of a chunk in its wav [n].

    starts: of each word in samples, as found from its frames. The first word starts where the speech does. Words that
    start after the sound, since nobody said them, share its end.
    """
    first, last, pauses = pauses_of(wav)
    begins, ends = [first], []
    for left, begin in zip(range(len(starts) - 1, 0, -1), starts[1:], strict=True):
        at = min(round(begin), len(wav) - left * _SHORTEST)
        near = [
            (start, stop)
            for start, stop in pauses
            if start - _NEAR <= at <= stop + _NEAR and begins[-1] + _SHORTEST < start
        ]
        end = max(near, key=lambda pause: pause[1] - pause[0], default=(at - _BETWEEN, at))[0]
        ends.append(max(min(end, at), begins[-1] + _SHORTEST))
        begins.append(max(at, ends[-1]))
    ends.append(max(last, begins[-1] + _SHORTEST))
    return [(min(start, len(wav)), min(stop, len(wav))) for start, stop in zip(begins, ends, strict=True)]


def placed(
    words: Sequence[str], starts: Sequence[float], wav: torch.Tensor, chunk: SpokenTurn, method: str
) -> list[Word]:
    """Return the words of a chunk. starts: of each word, as in `word_spans`. wav: the whole speech [n]."""
    spans = word_spans(starts, wav[chunk.start : chunk.stop])
    return [
        Word(text, (chunk.start + start) / SAMPLE_RATE, (chunk.start + stop) / SAMPLE_RATE, chunk.speaker, method)
        for text, (start, stop) in zip(words, spans, strict=True)
    ]
