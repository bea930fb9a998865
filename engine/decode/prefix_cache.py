"""Beginnings of prompts that were computed before, as keys and values on the device."""

from __future__ import annotations

from collections import OrderedDict

import torch

from ..core.sequence import Sequence
from ..device.memory import PrivatePool

MIN_PREFIX = 16  # shorter ones cost nothing beside the rest of the prompt


class PrefixCache:
    """The last `most` beginnings in use, each found again by exactly the ids and codes that made it.

    It belongs to one set of weights. Tensors come out of `pool`; where memory runs out, nothing new is kept.
    """

    def __init__(self, pool: PrivatePool, most: int):
        self._pool, self._most = pool, most
        self._kept: OrderedDict[tuple, torch.Tensor] = OrderedDict()  # [2, layers, kv_heads, n, D], newest last

    def __len__(self) -> int:
        return len(self._kept)

    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(kept.nbytes for kept in list(self._kept.values()))

    def load(self, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Copies a prompt's prefix into keys, values [layers, kv_heads, S, D]; false where it is not kept."""
        key = _key(sequence)
        if key not in self._kept:
            return False
        self._kept.move_to_end(key)
        keys[:, :, : sequence.prefix].copy_(self._kept[key][0])
        values[:, :, : sequence.prefix].copy_(self._kept[key][1])
        return True

    def keep(self, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keeps a copy of the prefix that keys and values hold, and drops the one that was used longest ago."""
        if not self._most:
            return
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        layers, heads, _, dim = keys.shape
        try:
            with self._pool.allocate():
                kept = keys.new_empty(2, layers, heads, sequence.prefix, dim)
        except torch.cuda.OutOfMemoryError:
            return
        self._pool.adopt([kept])
        kept[0].copy_(keys[:, :, : sequence.prefix])
        kept[1].copy_(values[:, :, : sequence.prefix])
        self._kept[_key(sequence)] = kept

    def clear(self) -> None:
        """Lets all of it go."""
        self._kept.clear()


def _key(sequence: Sequence) -> tuple:
    """All that a prefix's keys and values depend on beside the weights."""
    spans = [(at, tuple(rows.flatten().tolist())) for at, rows in sequence.audio if at < sequence.prefix]
    return tuple(sequence.ids[: sequence.prefix]), *spans
