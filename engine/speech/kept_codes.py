"""Host cache of spoken codes, so that a dialogue's unchanged turns are not spoken again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import Protocol

import torch

from ..core.config import SamplingParams
from ..core.sequence import Sequence

MOST_BYTES = 64 << 20


class SequenceStore(Protocol):
    """Storage for the codes of spoken sequences."""

    def fill(self, sequence: Sequence) -> bool:
        """Finish a sequence from its stored codes. True if there are any."""
        ...

    def keep(self, original: Sequence, spoken: Sequence) -> None:
        """Store the codes of `spoken`, which is `original` or a later take of it, under the key of `original`."""
        ...


class KeptCodes:
    """LRU cache of codes, keyed by prompt and voice, sampling parameters, index and frame budget.

    Weights are not part of the key, so each engine has its own cache. Holds at most `most_bytes` bytes.
    """

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._kept: OrderedDict[bytes, tuple[torch.Tensor, bool]] = OrderedDict()  # int16 [T, K], `ended`
        self._most, self.nbytes = most_bytes, 0

    def __len__(self) -> int:
        return len(self._kept)

    def fill(self, sequence: Sequence) -> bool:
        key = key_of(sequence)
        if key not in self._kept:
            return False
        self._kept.move_to_end(key)
        codes, ended = self._kept[key]
        sequence.fill(codes.long(), ended)
        return True

    def keep(self, original: Sequence, spoken: Sequence) -> None:
        key, codes = key_of(original), torch.cat(spoken.codes).to(torch.int16)
        if key in self._kept:
            self.nbytes -= self._kept.pop(key)[0].nbytes
        self._kept[key] = codes, spoken.ended
        self.nbytes += codes.nbytes
        while self.nbytes > self._most:
            self.nbytes -= self._kept.popitem(last=False)[1][0].nbytes


def key_of(sequence: Sequence) -> bytes:
    """Return a digest of everything but the weights that a sequence's codes depend on."""
    plain = SamplingParams()  # defaults for settings that affect only chunking and silence
    cuts = {name: getattr(plain, name) for name in ("chunk_seconds", "paragraph_gap", "turn_gap")}
    params = replace(sequence.params, **cuts)
    digest = hashlib.sha256(repr((sequence.ids, params, sequence.index, sequence.budget)).encode())
    for at, codes in sequence.audio:
        digest.update(repr((at, codes.shape)).encode())
        digest.update(codes.to(torch.int64).contiguous().numpy().tobytes())
    return digest.digest()
