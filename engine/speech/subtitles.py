"""Subtitles, one cue per sentence. Exact if a chunk is one sentence; longer chunks are split at pauses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ..audio.levels import silences, spoken_part
from ..core.config import SAMPLE_RATE
from ..core.threads import one_thread
from ..prompt.chunking import estimate_seconds, split_sentences
from ..prompt.cues import Cue, write_srt
from .result import SpeechResult, SpokenTurn

_LEAST_PAUSE = 0.06  # seconds; shorter silences are stops inside words
_LONG_PAUSE = 0.4  # seconds; longer pauses score the same
_PAUSE_WORTH = 2.0  # score of a long pause, in the units of `_misfit`
_SPREAD, _LEAST_SPREAD = 0.2, 0.15  # deviation of a sentence's length: share of the estimate, plus seconds
_KEPT = 50  # beam width
_NO_PAUSE = 3.0  # cost of a sentence end without a pause


@one_thread()
def cues_of(speech: SpeechResult) -> list[Cue]:
    """Return a cue for each spoken sentence, in order."""
    return [cue for chunk in speech.said for cue in sentence_cues(speech.wav, chunk)]


def sentence_cues(wav: torch.Tensor, chunk: SpokenTurn) -> list[Cue]:
    """Return a cue for each sentence of a chunk. wav: the whole speech [n]."""
    sentences = split_sentences(chunk.text)
    if not chunk.is_spoken or not sentences:
        return []
    times = share_time(wav[chunk.start : chunk.stop], sentences)
    return [
        Cue((chunk.start + start) / SAMPLE_RATE, (chunk.start + stop) / SAMPLE_RATE, text, chunk.speaker)
        for text, (start, stop) in zip(sentences, times, strict=True)
    ]


def srt_of(cues: Sequence[Cue]) -> str:
    """Return the cues as SubRip text. Cues carry names if there are several speakers."""
    several = len({cue.speaker for cue in cues}) > 1
    return write_srt(cues if several else [replace(cue, speaker="") for cue in cues])


def share_time(wav: torch.Tensor, parts: Sequence[str], are_words: bool = False) -> list[tuple[int, int]]:
    """Return the (start, stop) samples of each part of a text in wav [n], by length and pauses.

    are_words: pauses are between the parts. Else longer parts have pauses inside.
    """
    first, last = spoken_part(wav) or (0, len(wav))
    least = _LEAST_PAUSE * SAMPLE_RATE
    pauses = [(a, b) for a, b in silences(wav) if first < a and b < last and b - a >= least]
    sounding = last - first - are_words * sum(stop - start for start, stop in pauses)
    whole = sum(map(estimate_seconds, parts)) or 1.0
    lengths = [max(1.0, estimate_seconds(part) / whole * sounding) for part in parts]
    between = _boundaries(pauses, lengths, first, last)
    return list(zip([first, *(stop for _, stop in between)], [*(start for start, _ in between), last], strict=True))


def _boundaries(pauses: list[tuple[int, int]], lengths: list[float], first: int, last: int) -> list[tuple[int, int]]:
    """Return the pause after each sentence but the last, by beam search for the best fit to their lengths.

    A sentence without a suitable pause ends after its estimated length.
    """
    ways: list[tuple[float, int, list[tuple[int, int]]]] = [(0.0, first, [])]  # cost, next start, pauses so far
    for number, length in enumerate(lengths[:-1]):
        after = sum(lengths[number + 1 :])
        reached: dict[int, tuple[float, int, list[tuple[int, int]]]] = {}
        for cost, at, taken in ways:
            end = min(round(at + length), last)
            for start, stop in [*(pause for pause in pauses if pause[0] > at), (end, end)]:
                seconds = (stop - start) / SAMPLE_RATE
                worth = _PAUSE_WORTH * min(seconds / _LONG_PAUSE, 1.0) if stop > start else -_NO_PAUSE
                total = cost + _misfit(start - at, length) - worth
                if stop not in reached or total < reached[stop][0]:
                    reached[stop] = (total, stop, [*taken, (start, stop)])
        ways = sorted(reached.values(), key=lambda way: way[0] + _misfit(last - way[1], after))[:_KEPT]
    return min(ways, key=lambda way: way[0] + _misfit(last - way[1], lengths[-1]))[2]


def _misfit(samples: float, expected: float) -> float:
    """Return the squared deviation from the expected length, in units of its spread."""
    spread = _SPREAD * expected + _LEAST_SPREAD * SAMPLE_RATE
    return math.pow((samples - expected) / spread, 2)
