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
from ..talker import Talker
from .letters import said_words, token_shares, words_and_sentences

_POSITIONS = 1024  # of a prefill, so that its buffers stay small


class Head(NamedTuple):
    """An attention head that follows the words. lag: frames by which its attention comes after the sound."""

    layer: int
    head: int
    lag: int = 0


@dataclass(frozen=True)
class ReadWords:
    """A chunk's text as the talker reads it again: prompt, words, and which tokens are which word.

    forms: how each word is said. sentences: the number of each word's sentence. shares: [N, W], see `token_shares`; the
    tokens are the prompt's positions from its prefix on.
    """

    prompt: Prompt
    words: list[str]
    forms: list[str]
    sentences: list[int]
    shares: torch.Tensor


def read_words(builder: PromptBuilder, text: str) -> ReadWords | None:
    """Build the prompt of a chunk. None if its words are not in it.

    It has no voice: the codes tell how the speaker sounds, and the prompt is shorter.
    """
    words, sentences = words_and_sentences(text)
    if not words:
        return None
    prompt = builder.build(text)
    read, tokens = builder.read_text(prompt)
    shares = token_shares(words, read.written, tokens)
    return None if shares is None else ReadWords(prompt, words, said_words(words, read), sentences, shares)


def mean_attention(maps: Iterable[torch.Tensor], heads: Iterable[Head]) -> torch.Tensor:
    """Return [T, W]: the mean of the heads' attention, each without its lag. maps: [heads, T, W] by layer, sorted."""
    every = torch.cat(list(maps))
    frames = torch.arange(every.shape[1])
    late = [(frames + head.lag).clamp(0, len(frames) - 1) for head in sorted(heads)]
    return torch.stack([one[at] for one, at in zip(every, late, strict=True)]).mean(0)


def by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    """Return layer -> its heads, sorted."""
    layers: dict[int, list[int]] = {}
    for head in sorted(heads):
        layers.setdefault(head.layer, []).append(head.head)
    return layers


def attention_to_words(
    talker: Talker, chunk: ReadWords, codes: torch.Tensor, heads: Mapping[int, Sequence[int]]
) -> list[torch.Tensor]:
    """Return `Reading.maps` of a whole chunk, spoken as codes [T, K]."""
    reading = Reading(talker, chunk.prompt, chunk.shares, heads)
    reading.read(codes)
    return reading.maps()


class Reading:
    """Attention of heads to the text while the talker reads the codes of a chunk that may still be growing.

    shares: see `ReadWords`. heads: layer -> its heads of interest. Layers above them are not computed.
    """

    def __init__(self, talker: Talker, prompt: Prompt, shares: torch.Tensor, heads: Mapping[int, Sequence[int]]):
        self._talker, self._prompt = talker, prompt
        self._text = slice(prompt.prefix, prompt.prefix + len(shares))
        self._shares = to_device(shares, talker.device)
        self._wanted = {layer: to_device(torch.tensor(list(heads[layer])), talker.device) for layer in sorted(heads)}
        self._attention: dict[int, list[torch.Tensor]] = {layer: [] for layer in self._wanted}
        self._filled = 0  # positions
        # A cache of its own: other sequences may be decoding.
        size = 2, max(heads) + 1, talker.config.kv_heads, 0, talker.config.head_dim
        self._cache = torch.empty(size, dtype=talker.dtype, device=talker.device)

    def read(self, codes: torch.Tensor) -> None:
        """Read on to the end of codes [T, K], which begin with those of earlier calls."""
        prompt, total = self._prompt, len(self._prompt) + len(codes) - 1
        # The columns are those of decoding in both families: v2's first one is in its prompt.
        columns = apply_v3(codes)[: len(codes) - 1]
        ids, audio = [*prompt.ids, *[FILLER] * len(columns)], (*prompt.audio, (len(prompt), columns))
        if total > self._cache.shape[3]:
            kept, slots = self._cache[:, :, :, : self._filled], max(total, 2 * self._cache.shape[3])
            self._cache = kept.new_empty(*kept.shape[:3], slots, kept.shape[4])
            self._cache[:, :, :, : self._filled] = kept
        while self._filled < total:
            stop = min(self._filled + _POSITIONS, total)
            self._talker.fill(ids, audio, self._cache[0], self._cache[1], self._filled, stop, self._look)
            self._filled = stop

    def maps(self) -> list[torch.Tensor]:
        """Return each layer's [heads, T, W] fp32 on the host: of what heads attend to in the text, each word's share.

        The frame at index t is the one whose first code is predicted there.
        """
        return [torch.cat(parts, 1).cpu() for parts in self._attention.values()]

    def _look(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        before = max(0, len(self._prompt) - 1 - self._filled)  # positions before the first frame
        if layer not in self._wanted or before >= len(queries):
            return
        config, heads = self._talker.config, self._wanted[layer]
        q = queries[before:, heads].transpose(0, 1).float()
        k = keys[heads // (config.heads // config.kv_heads), self._text].float()
        self._attention[layer].append((q @ k.mT * config.head_dim**-0.5).softmax(-1) @ self._shares)
