"""Attention of a talker's heads from the codes of a finished chunk to the words of its text, by one more prefill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..core.codes import apply_v3
from ..core.sequence import Sequence as Prompt
from ..device.memory import to_device
from ..prompt.builder import FILLER, PromptBuilder
from ..speech.result import SpeechResult, SpokenTurn
from ..talker import Talker
from .letters import token_shares, words_of

_POSITIONS = 1024  # of a prefill, so that its buffers stay small


class Head(NamedTuple):
    """An attention head that follows the words. lag: frames by which its attention comes after the sound."""

    layer: int
    head: int
    lag: int = 0


@dataclass(frozen=True)
class ReadChunk:
    """A spoken chunk as the talker reads it again: prompt, words, and which tokens are which word.

    shares: [N, W], see `token_shares`; the tokens are the prompt's positions from its prefix on.
    """

    prompt: Prompt
    words: list[str]
    shares: torch.Tensor
    codes: torch.Tensor  # [T, K], T >= W


def read_chunk(builder: PromptBuilder, speech: SpeechResult, chunk: SpokenTurn) -> ReadChunk | None:
    """Build the prompt of a spoken chunk. None if its words are not in it, or it has fewer frames than words.

    It has no voice: the codes tell how the speaker sounds, and the prompt is shorter.
    """
    words, codes = words_of(chunk.text), speech.codes[slice(*chunk.frames)]
    if not words or len(codes) < len(words):
        return None
    prompt = builder.build(chunk.text)
    read, tokens = builder.read_text(prompt)
    shares = token_shares(words, read, tokens)
    return None if shares is None else ReadChunk(prompt, words, shares, codes)


def attention_to_words(talker: Talker, chunk: ReadChunk, heads: Mapping[int, Sequence[int]]) -> Iterable[torch.Tensor]:
    """Return each layer's [heads, T, W] fp32 on the host: of what heads attend to in the text, the share of each word.

    heads: layer -> its heads of interest. The frame at index t is the one whose first code is predicted there. Layers
    above them are not computed.
    """
    config, prompt, frames = talker.config, chunk.prompt, len(chunk.codes)
    first, total = len(prompt) - 1, len(prompt) + frames - 1
    text = slice(prompt.prefix, prompt.prefix + len(chunk.shares))
    shares = to_device(chunk.shares, talker.device)
    wanted = {layer: to_device(torch.tensor(list(heads[layer])), talker.device) for layer in sorted(heads)}
    group, found = config.heads // config.kv_heads, {layer: [] for layer in wanted}
    start = 0

    def look(layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        if layer not in found or start + len(queries) <= first:
            return
        q = queries[max(0, first - start) :, wanted[layer]].transpose(0, 1).float()
        k = keys[wanted[layer] // group, text].float()
        found[layer].append((q @ k.mT * config.head_dim**-0.5).softmax(-1) @ shares)

    # The columns are those of decoding in both families: v2's first one is in its prompt.
    columns = apply_v3(chunk.codes)[: frames - 1]
    ids, audio = [*prompt.ids, *[FILLER] * len(columns)], (*prompt.audio, (len(prompt), columns))
    # A cache of its own: other sequences may be decoding.
    size = max(heads) + 1, config.kv_heads, total, config.head_dim
    keys, values = (torch.empty(size, dtype=talker.dtype, device=talker.device) for _ in range(2))
    for start in range(0, total, _POSITIONS):
        talker.fill(ids, audio, keys, values, start, min(start + _POSITIONS, total), look)
    return [torch.cat(parts, 1).cpu() for parts in found.values()]
