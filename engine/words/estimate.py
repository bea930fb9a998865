"""Word times without a model: a sentence's time shared out by the length of its words, with pauses between them."""

from __future__ import annotations

import torch

from ..core.config import SAMPLE_RATE
from ..core.threads import one_thread
from ..prompt.chunking import split_words
from ..speech.result import SpokenTurn
from ..speech.subtitles import sentence_cues, share_time
from .word import Word


@one_thread()
def estimate(wav: torch.Tensor, chunk: SpokenTurn) -> list[Word]:
    """Return the words of a chunk (one of `SpeechResult.said`) in order. wav: the whole speech [n]."""
    timed = []
    for cue in sentence_cues(wav, chunk):
        words, at = split_words(cue.text), round(cue.start * SAMPLE_RATE)
        times = share_time(wav[at : round(cue.stop * SAMPLE_RATE)], words, are_words=True)
        for text, (start, stop) in zip(words, times, strict=True):
            timed.append(Word(text, (at + start) / SAMPLE_RATE, (at + stop) / SAMPLE_RATE, cue.speaker))
    return timed
