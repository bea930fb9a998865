"""Attention of a talker's heads from the frames of a chunk to the words of its text.

While a talker speaks, it keeps the queries of the aligning heads (`Listening`). Of codes from elsewhere there are none,
so it reads them by one more prefill (`attention_to_words`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from ..core.codes import apply_v3
from ..core.sequence import Sequence as Prompt
from ..device.memory import end_of_work, to_device, to_host
from ..prompt.builder import FILLER, PromptBuilder
from ..talker import Talker
from ..talker.config import Aligned
from .letters import said_words, token_shares, words_and_sentences

_POSITIONS = 1024  # of a prefill, so that its buffers stay small


class Head(NamedTuple):
    """An attention head that follows the words. lag: frames by which its attention comes after the sound."""

    layer: int
    head: int
    lag: int = 0


class KeptQueries(Protocol):
    """Queries that decoding keeps, and the keys that they meet, [heads, n, D] by (layer, head); see KVCache."""

    def row_queries(self, row: int, start: int, stop: int) -> torch.Tensor: ...

    def row_keys(self, row: int, start: int, stop: int) -> torch.Tensor: ...


@dataclass(frozen=True)
class ReadWords:
    """A chunk's text as the talker reads it: prompt, words, and which tokens are which word.

    forms: how each word is said. sentences: the number of each word's sentence. shares: [N, W], see `token_shares`; the
    tokens are the prompt's positions from its prefix on.
    """

    prompt: Prompt
    words: list[str]
    forms: list[str]
    sentences: list[int]
    shares: torch.Tensor

    @property
    def text_slots(self) -> slice:
        """The positions of the text in the prompt."""
        return slice(self.prompt.prefix, self.prompt.prefix + len(self.shares))


def read_words(builder: PromptBuilder, prompt: Prompt) -> ReadWords | None:
    """Return the words of a chunk's prompt. None if its text is not read as it is written."""
    words, sentences = words_and_sentences(prompt.text)
    if not words:
        return None
    read, tokens = builder.read_text(prompt)
    shares = token_shares(words, read.written, tokens)
    return None if shares is None else ReadWords(prompt, words, said_words(words, read), sentences, shares)


def mean_attention(maps: Iterable[torch.Tensor], heads: Iterable[Head]) -> torch.Tensor:
    """Return [T, W]: the mean of the heads' attention, each without its lag.

    maps: [heads, T, W] by layer, of `aligned_heads`.
    """
    joined = torch.cat(list(maps))
    every = dict(zip(aligned_heads(heads), joined, strict=True))
    frames = torch.arange(joined.shape[1], device=joined.device)
    late = {lag: (frames + lag).clamp(0, len(frames) - 1) for lag in {head.lag for head in heads}}
    return torch.stack([every[head[:2]][late[head.lag]] for head in sorted(heads)]).mean(0)


def aligned_heads(heads: Iterable[Head]) -> Aligned:
    """Return the (layer, head) of heads, sorted, each once."""
    return tuple(sorted({head[:2] for head in heads}))


def by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    """Return layer -> its heads, sorted."""
    layers: dict[int, list[int]] = {}
    for layer, head in aligned_heads(heads):
        layers.setdefault(layer, []).append(head)
    return layers


def attention_to_words(
    talker: Talker, chunk: ReadWords, codes: torch.Tensor, heads: Mapping[int, Sequence[int]]
) -> list[torch.Tensor]:
    """Return each layer's [heads, T, W] fp32 on the device: of what heads attend to in the text, each word's share.

    By one more prefill of the prompt and codes [T, K]. The frame at index t is the one whose first code is predicted
    there. heads: layer -> its heads of interest. Layers above them are not computed.
    """
    prompt, config, device = chunk.prompt, talker.config, talker.device
    shares, text = to_device(chunk.shares, device), chunk.text_slots
    wanted = {layer: to_device(torch.tensor(list(heads[layer])), device) for layer in sorted(heads)}
    maps: dict[int, list[torch.Tensor]] = {layer: [] for layer in wanted}
    # The columns are those of decoding in both families: v2's first one is in its prompt.
    columns = apply_v3(codes)[: len(codes) - 1]
    ids, audio = [*prompt.ids, *[FILLER] * len(columns)], (*prompt.audio, (len(prompt), columns))
    # A cache of its own: other sequences may be decoding.
    size = 2, max(heads) + 1, config.kv_heads, len(ids), config.head_dim
    cache = torch.empty(size, dtype=talker.dtype, device=device)
    for start in range(0, len(ids), _POSITIONS):
        before = max(0, len(prompt) - 1 - start)  # positions before the first frame

        def look(layer: int, queries: torch.Tensor, keys: torch.Tensor, before: int = before) -> None:
            if layer in wanted and before < len(queries):
                own = wanted[layer]
                q, k = queries[before:, own].transpose(0, 1), keys[own // (config.heads // config.kv_heads), text]
                maps[layer].append(_attended(q, k, shares))

        talker.fill(ids, audio, cache[0], cache[1], start, min(start + _POSITIONS, len(ids)), look)
    return [torch.cat(parts, 1) for parts in maps.values()]


def has_room(talker: Talker, chunk: ReadWords, codes: torch.Tensor) -> bool:
    """True if prompt and codes [T, K] fit into the talker's context, as `attention_to_words` needs them to."""
    return len(chunk.prompt) + len(codes) - 1 <= len(talker.cos)


def _attended(queries: torch.Tensor, keys: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Attend with queries [heads, T, D] to the text's keys [heads, N, D] alone. shares [N, W] -> [heads, T, W] fp32."""
    return (queries.float() @ keys.float().mT * queries.shape[-1] ** -0.5).softmax(-1) @ shares


class Listening:
    """Attention of heads to the text by the queries that are kept while the talker speaks a chunk.

    That of the first frame belongs to the prompt and is not kept. The second frame's stands for it.
    """

    def __init__(self, chunk: ReadWords, heads: Sequence[Head]):
        self._chunk, self._heads, self._shares = chunk, heads, chunk.shares
        self._maps: list[torch.Tensor] = []  # [heads, t, W] each, on the host once `_copied` has come
        self._copied: torch.cuda.Event | None = None
        self.frames = 0

    def listen(self, cache: KeptQueries, row: int, frames: int) -> None:
        """Take in the attention of the first `frames` frames, which must still be in a row of the cache."""
        first, last = len(self._chunk.prompt) - 1 + max(1, self.frames), len(self._chunk.prompt) - 1 + frames
        if first >= last:
            return
        queries = cache.row_queries(row, first, last)
        self._shares = to_device(self._shares, queries.device)
        text = self._chunk.text_slots
        new = _attended(queries, cache.row_keys(row, text.start, text.stop), self._shares)
        if new.is_cuda:
            new, self._copied = to_host(new), end_of_work()
        self._maps.append(new)
        self.frames = frames

    def mean(self) -> torch.Tensor:
        """Return `mean_attention` [frames, W] on the host. Waits for a GPU."""
        if self._copied is not None:
            self._copied.synchronize()
        return mean_attention([torch.cat([self._maps[0][:, :1], *self._maps], 1)], self._heads)
