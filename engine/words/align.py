"""Words of a finished speech by the attention of the talker that spoke it, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.config import FRAME_RATE, SAMPLE_RATE
from ..prompt.builder import PromptBuilder
from ..speech.result import SpeechResult
from ..talker import Talker
from .attention import Head, attention_to_words, by_layer, has_room, mean_attention, read_words
from .boundaries import placed
from .estimate import estimate
from .heads import choose_heads
from .path import find_paths
from .word import Word

_FRAME = SAMPLE_RATE // FRAME_RATE


def align(talker: Talker, builder: PromptBuilder, heads: Sequence[Head], speech: SpeechResult) -> tuple[Word, ...]:
    """Return the words of a speech in order. A chunk whose text cannot be matched with its prompt is estimated."""
    words: list[Word] = []
    for turn in speech.said:
        codes = speech.codes[slice(*turn.frames)]
        chunk = read_words(builder, builder.build(turn.text)) if turn.is_spoken else None
        if chunk is None or len(codes) < len(chunk.words) or not has_room(talker, chunk, codes):
            words += estimate(speech.wav, turn)
            continue
        attention = mean_attention(attention_to_words(talker, chunk, codes, by_layer(heads)), heads).cpu()
        starts = _evened(find_paths(attention[None])[0][0].tolist(), chunk.shares, len(codes))
        samples = [(start + 0.5) * _FRAME - turn.lead for start in starts]
        words += placed(chunk.words, samples, speech.wav, turn, "attention")
    return tuple(words)


def find_heads(talker: Talker, builder: PromptBuilder, speech: SpeechResult) -> tuple[Head, ...]:
    """Return the talker's aligning heads, judged by its speech of one chunk. Empty if none aligns."""
    (turn,) = speech.said
    codes, chunk = speech.codes[slice(*turn.frames)], read_words(builder, builder.build(turn.text))
    if chunk is None or len(codes) < len(chunk.words):
        return ()
    every = dict.fromkeys(range(talker.config.layers), range(talker.config.heads))
    layers = [maps.cpu() for maps in attention_to_words(talker, chunk, codes, every)]
    return choose_heads(layers, chunk.words, speech.wav[turn.start : turn.stop], turn.lead)


def _evened(starts: list[int], shares: torch.Tensor, frames: int) -> list[float]:
    """Return the first frames of words. Words that share their tokens, as in Chinese, share their time evenly."""
    same = (shares[:, 1:] == shares[:, :-1]).all(0).tolist()
    evened, number = [float(start) for start in starts], 0
    while number < len(starts):
        after = number + 1
        while after < len(starts) and same[after - 1]:
            after += 1
        stop = starts[after] if after < len(starts) else frames
        for place in range(number + 1, after):
            evened[place] = starts[number] + (stop - starts[number]) * (place - number) / (after - number)
        number = after
    return evened
