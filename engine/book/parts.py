"""Speech of several turns, cut into what is appended to the chapters' files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ..core.config import SAMPLE_RATE
from ..prompt.cues import Cue
from ..speech.result import DoubtfulWords, SpeechResult, SpokenTurn
from ..speech.subtitles import cues_of
from ..words.cues import sentences_of, words_by_turn
from ..words.word import Word


class TurnSpeech(NamedTuple):
    """A turn's speech. Cues, words and doubts are timed from its start."""

    gap: float  # seconds of silence before it
    wav: torch.Tensor  # [n]
    cues: list[Cue]
    words: list[Word]
    doubts: list[DoubtfulWords]


def parts_of(speech: SpeechResult, tail: float, words: Sequence[Word] | None) -> list[TurnSpeech]:
    """Return a part for each turn. tail: silence requested before the first. words: those of the speech, if wanted."""
    stops = [0, *(turn.stop for turn in speech.turns)]
    gaps = [(turn.start - stop) / SAMPLE_RATE for turn, stop in zip(speech.turns, stops, strict=False)]
    gaps[0] += tail
    sentences = cues_of(speech) if words is None else sentences_of(speech, words)
    cues = [(cue, round(cue.start * SAMPLE_RATE)) for cue in sentences]
    within = [[_shifted(cue, turn) for cue, at in cues if turn.start <= at < turn.stop] for turn in speech.turns]
    timed = [[] for _ in speech.turns] if words is None else words_by_turn(speech, words)
    wavs = [speech.wav[turn.start : turn.stop] for turn in speech.turns]
    spans = [(turn.start / SAMPLE_RATE, turn.stop / SAMPLE_RATE) for turn in speech.turns]
    doubts = [[one.moved(-start) for one in speech.doubts if start <= one.start < stop] for start, stop in spans]
    return list(map(TurnSpeech, gaps, wavs, within, timed, doubts))


def _shifted(cue: Cue, turn: SpokenTurn) -> Cue:
    """Shift a cue by whole samples, so the result does not depend on the turn's place in a batch."""
    start, stop = ((round(time * SAMPLE_RATE) - turn.start) / SAMPLE_RATE for time in (cue.start, cue.stop))
    return replace(cue, start=start, stop=stop)
