"""Prefix cache: keys and values of prompt prefixes on the device."""

from __future__ import annotations

from collections import OrderedDict

import torch

from ..core.sequence import Sequence
from ..device.memory import PrivatePool

MIN_PREFIX = 16  # shorter prefixes are not worth caching


class PrefixCache:
    """LRU cache of up to `most` prefixes, keyed by their exact ids and codes.

    Belongs to one set of weights. Tensors are allocated from `pool`. If memory runs out, a new prefix is not cached.
    """

    def __init__(self, pool: PrivatePool, most: int):
        self._pool, self._most = pool, most
        self._kept: OrderedDict[tuple, torch.Tensor] = OrderedDict()  # [2, layers, kv_heads, n, D], newest last

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, sequence: Sequence) -> bool:
        return _key(sequence) in self._kept

    def nbytes(self) -> int:
        """Return the bytes in use on the device."""
        return sum(kept.nbytes for kept in list(self._kept.values()))

    def load(self, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Copy a prompt's prefix into keys, values [layers, kv_heads, S, D]. Returns False if it is not cached."""
        key = _key(sequence)
        if key not in self._kept:
            return False
        self._kept.move_to_end(key)
        keys[:, :, : sequence.prefix].copy_(self._kept[key][0])
        values[:, :, : sequence.prefix].copy_(self._kept[key][1])
        return True

    def keep(self, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Cache a copy of the prefix in keys and values. Evicts the least recently used prefix if the cache is full."""
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
        self._kept.clear()


def _key(sequence: Sequence) -> tuple:
    """Return everything a prefix's keys and values depend on, besides the weights."""
    spans = [(at, tuple(rows.flatten().tolist())) for at, rows in sequence.audio if at < sequence.prefix]
    return tuple(sequence.ids[: sequence.prefix]), *spans
