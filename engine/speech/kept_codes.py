"""Codes of earlier sequences on the host, so that a dialogue's unchanged turns are reused."""

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
    """Store of earlier sequences' codes."""

    def fill(self, sequence: Sequence) -> bool:
        """Finishes a sequence that was said before; false where it was not."""
        ...

    def keep(self, asked: Sequence, spoken: Sequence) -> None:
        """Keeps what was spoken of a sequence: its own codes, or those of a later take."""
        ...


class KeptCodes:
    """Codes by all that they depend on beside the weights: prompt with its voice, sampling parameters and index.

    It belongs to one engine. The ones used longest ago go when there are more than MOST_BYTES.
    """

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._kept: OrderedDict[bytes, tuple[torch.Tensor, bool]] = OrderedDict()  # int16 [T, K], ended by itself
        self._most, self.nbytes = most_bytes, 0

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forgets all."""
        self._kept.clear()
        self.nbytes = 0

    def fill(self, sequence: Sequence) -> bool:
        """Finishes a sequence that was said before; false where it was not."""
        key = key_of(sequence)
        if key not in self._kept:
            return False
        self._kept.move_to_end(key)
        codes, ended = self._kept[key]
        sequence.fill(codes.long(), ended)
        return True

    def keep(self, asked: Sequence, spoken: Sequence) -> None:
        """Keeps what was spoken of a sequence: its own codes, or those of a later take."""
        key, codes = key_of(asked), torch.cat(spoken.codes).to(torch.int16)
        if key in self._kept:
            self.nbytes -= self._kept.pop(key)[0].nbytes
        self._kept[key] = codes, spoken.ended
        self.nbytes += codes.nbytes
        while self.nbytes > self._most:
            self.nbytes -= self._kept.popitem(last=False)[1][0].nbytes


def key_of(sequence: Sequence) -> bytes:
    """A digest of all that a sequence's codes depend on beside the weights."""
    plain = SamplingParams()  # of what only says where the text is cut and what is silent
    cuts = {name: getattr(plain, name) for name in ("chunk_seconds", "paragraph_gap", "turn_gap")}
    params = replace(sequence.params, **cuts)
    digest = hashlib.sha256(repr((sequence.ids, params, sequence.index, sequence.budget)).encode())
    for at, codes in sequence.audio:
        digest.update(repr((at, codes.shape)).encode())
        digest.update(codes.to(torch.int64).contiguous().numpy().tobytes())
    return digest.digest()
