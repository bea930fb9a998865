"""The bf16 matrices of a fill's products. Dequantising a quantised one overlaps with the products before it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch

from ...device.memory import end_of_work
from ...talker import Talker
from ...talker.weight import Weight

Widen = Callable[[Weight, torch.Tensor], torch.Tensor]  # dequantises into a buffer, and returns the matrix there


def weights_of(talker: Talker, text: bool, codes: bool) -> Iterator[Weight]:
    """Yield the weights of a fill with text, codes or both, in the order of its products."""
    for layer in talker.layers:
        yield from (layer.qkv, layer.out)
        for expert in (layer.text,) * text + (layer.code,) * codes:
            yield from (expert.gate_up, expert.down)


def split_scratch(talker: Talker) -> list[torch.Tensor]:
    """Split a talker's scratch into two buffers for the weights of `weights_of` in turn. Empty if it is too small."""
    layer, scratch = talker.layers[0], talker.scratch
    if scratch is None:
        return []
    firsts, seconds = (
        max(2 * math.prod(weight.shape) for weight in weights)
        for weights in ((layer.qkv, layer.text.gate_up), (layer.out, layer.text.down))
    )
    return list(scratch.split([firsts, len(scratch) - firsts])) if len(scratch) >= firsts + seconds else []


class Matrices:
    """The matrices of a fill, in the order of its products."""

    def __init__(self, weights: Iterator[Weight], matrix_of: Callable[[Weight], torch.Tensor]):
        self._weights, self._matrix_of = weights, matrix_of

    @contextlib.contextmanager
    def following(self) -> Iterator[torch.Tensor]:
        """Yield the next product's matrix [out, in] in bf16, valid within the context."""
        yield self._matrix_of(next(self._weights))


class WidenedMatrices(Matrices):
    """Double buffering: each matrix is dequantised on the stream `side` while the previous product runs.

    Products are compute-bound, dequantising is memory-bound. Later work on the current stream waits for both.
    """

    def __init__(self, weights: Iterator[Weight], widen: Widen, buffers: list[torch.Tensor], side: torch.cuda.Stream):
        self._weights, self._widen, self._buffers, self._side = weights, widen, buffers, side
        self._main = torch.cuda.current_stream(side.device)
        self._read = [end_of_work(self._main) for _ in buffers]  # ends of their last reads
        self._made = self._make(0)
        self._at = 0  # of the matrix in `_made`

    def _make(self, at: int) -> tuple[torch.Tensor, torch.cuda.Event] | None:
        weight = next(self._weights, None)
        if weight is None:
            return None
        self._side.wait_event(self._read[at % 2])
        with torch.cuda.stream(self._side):
            return self._widen(weight, self._buffers[at % 2]), end_of_work(self._side)

    @contextlib.contextmanager
    def following(self) -> Iterator[torch.Tensor]:
        assert self._made is not None, "a fill has no further product"
        matrix, made = self._made
        self._made = self._make(self._at + 1)
        self._main.wait_event(made)
        yield matrix
        self._read[self._at % 2] = end_of_work(self._main)
        self._at += 1
