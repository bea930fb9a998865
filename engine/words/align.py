"""Words of a finished speech by the attention of the talker that spoke it, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.config import FRAME_RATE, SAMPLE_RATE
from ..prompt.builder import PromptBuilder
from ..speech.result import SpeechResult, SpokenTurn
from ..talker import Talker
from .attention import Head, ReadChunk, attention_to_words, read_chunk
from .boundaries import placed
from .estimate import estimate
from .heads import choose_heads
from .path import find_paths
from .word import Word

_FRAME = SAMPLE_RATE // FRAME_RATE


def align(talker: Talker, builder: PromptBuilder, heads: Sequence[Head], speech: SpeechResult) -> tuple[Word, ...]:
    """Return the words of a speech in order. A chunk whose text cannot be matched with its prompt is estimated."""
    found: list[Word] = []
    for turn in speech.said:
        chunk = read_chunk(builder, speech, turn) if turn.is_spoken else None
        found += estimate(speech.wav, turn) if chunk is None else _aligned(talker, heads, speech.wav, turn, chunk)
    return tuple(found)


def find_heads(talker: Talker, builder: PromptBuilder, speech: SpeechResult) -> tuple[Head, ...]:
    """Return the talker's aligning heads, judged by its speech of one chunk. Empty if none aligns."""
    (turn,) = speech.said
    chunk = read_chunk(builder, speech, turn)
    if chunk is None:
        return ()
    every = dict.fromkeys(range(talker.config.layers), range(talker.config.heads))
    layers = attention_to_words(talker, chunk, every)
    return choose_heads(layers, chunk, speech.wav[turn.start : turn.stop], turn.lead)


def _aligned(
    talker: Talker, heads: Sequence[Head], wav: torch.Tensor, turn: SpokenTurn, chunk: ReadChunk
) -> list[Word]:
    by_layer: dict[int, list[int]] = {}
    for head in sorted(heads):
        by_layer.setdefault(head.layer, []).append(head.head)
    maps = torch.cat(list(attention_to_words(talker, chunk, by_layer)))
    maps = torch.stack([_shifted(one, head.lag) for one, head in zip(maps, sorted(heads), strict=True)])
    starts = _evened(find_paths(maps.mean(0, keepdim=True))[0][0].tolist(), chunk)
    samples = [(start + 0.5) * _FRAME - turn.lead for start in starts]
    return placed(chunk.words, samples, wav, turn, "attention")


def _shifted(attention: torch.Tensor, lag: int) -> torch.Tensor:
    """Return the attention [T, W] of each frame's sound, where it comes `lag` frames later."""
    frames = torch.arange(len(attention)) + lag
    return attention[frames.clamp(0, len(attention) - 1)]


def _evened(starts: list[int], chunk: ReadChunk) -> list[float]:
    """Return the first frames of words. Words that share their tokens, as in Chinese, share their time evenly."""
    same = (chunk.shares[:, 1:] == chunk.shares[:, :-1]).all(0).tolist()
    evened, number = [float(start) for start in starts], 0
    while number < len(starts):
        after = number + 1
        while after < len(starts) and same[after - 1]:
            after += 1
        stop = starts[after] if after < len(starts) else len(chunk.codes)
        for place in range(number + 1, after):
            evened[place] = starts[number] + (stop - starts[number]) * (place - number) / (after - number)
        number = after
    return evened
