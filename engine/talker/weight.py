"""Weight matrices and their storage formats. A new format is a row in FORMATS and a struct in weight_format.cuh."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from .quantize import (
    BLOCK,
    INT4_BLOCK,
    INT8_SCALE,
    Q8_0_BLOCK,
    dequantize_int4,
    dequantize_int8,
    dequantize_q8_0,
    int4_scales,
    int8_scales,
    q8_0_scales,
    quantize_int4,
    quantize_int8,
    quantize_q8_0,
)

SCRATCH = "scratch"  # key among the tensors of a talker, see Weight.scratch
WIDENED = 1 << 19  # weights widened at a time: 2 MB as fp32, which stay in a core's cache
_TILE = 64  # rows; a multiple of those that a library's product computes together


@dataclass(frozen=True)
class Format:
    """Storage format of a matrix: row by row, each row in whole blocks."""

    dtype: torch.dtype  # of Weight.data; unique to the format
    block: int  # weights per block
    block_bytes: int  # including the block's scales
    scale_bytes: int = 0  # after a row's blocks
    cuda: str | None = None  # struct in decode/kernels/weight_format.cuh; None: torch ops only
    quantize: Callable[[torch.Tensor, torch.Tensor], None] | None = None  # (matrix, out=data)
    dequantize: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None  # (data, out=matrix, spare)
    scales: Callable[[torch.Tensor], torch.Tensor] | None = None  # data -> scales of its codes
    largest: int = 1  # largest code magnitude

    @property
    def bits(self) -> float:
        """Bits per weight, without row scales."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, weights: int) -> int:
        """Return the bytes in a row of `weights` weights (whole blocks)."""
        return weights // self.block * self.block_bytes + self.scale_bytes


# q8_0's rows are not int16 values: the dtype only distinguishes the format from the others.
FORMATS: dict[str, Format] = {
    "bf16": Format(torch.bfloat16, 1, 2, cuda="Bf16"),
    "fp32": Format(torch.float32, 1, 4),
    "int8": Format(torch.int8, BLOCK, BLOCK, INT8_SCALE, "Int8", quantize_int8, dequantize_int8, int8_scales, 127),
    "int4": Format(torch.uint8, BLOCK, INT4_BLOCK, 0, "Int4", quantize_int4, dequantize_int4, int4_scales, 8),
    "q8_0": Format(torch.int16, BLOCK, Q8_0_BLOCK, 0, "Q8_0", quantize_q8_0, dequantize_q8_0, q8_0_scales, 127),
}
KEPT_BY = {"q8_0": "int8"}  # format found only in files -> EngineConfig's dtype that keeps it
_OF_DTYPE = {format.dtype: name for name, format in FORMATS.items()}


def is_layer_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True if a canonical tensor may be quantised: the layers' matrices, but not embeddings, head or norms."""
    return name.startswith("layers.") and len(shape) == 2


def format_of(dtype: torch.dtype) -> Format:
    """Return the format of a tensor with this dtype."""
    return FORMATS[_OF_DTYPE[dtype]]


@dataclass(eq=False)
class Weight:
    """Weight matrix [out, in] for `linear` and related ops.

    scratch: shared buffer for torch's products. A quantised matrix is dequantised into it (see `scratch_bytes`), and a
        bf16 matrix is widened for products in fp32 (see `widened_bytes`).
    """

    data: torch.Tensor
    scratch: torch.Tensor | None = None

    @property
    def format(self) -> str:
        """Name of the format in FORMATS."""
        return _OF_DTYPE[self.data.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix, [out, in]."""
        format = FORMATS[self.format]
        row_bytes = self.data.shape[1] * format.dtype.itemsize - format.scale_bytes
        return len(self.data), row_bytes // format.block_bytes * format.block

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix [out, in] for torch's products.

        A quantised matrix is dequantised to `dtype` and valid until the next call with the same scratch.
        """
        dequantize = FORMATS[self.format].dequantize
        if dequantize is None:
            return self.data
        assert self.scratch is not None, "a talker gives its quantised weights room"
        out, width = self.shape
        size = out * width * dtype.itemsize
        matrix = self.scratch[:size].view(dtype).view(out, width)
        dequantize(self.data, matrix, self.scratch[size:])
        return matrix

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield rows and their matrix [rows, in] for torch's products, each valid until the next is asked for.

        All rows at once, but for a bf16 matrix that is widened to fp32: that a block at a time, so that memory is read
        in two bytes a weight. A row's sums do not depend on its block, see `_blocks`.
        """
        if self.data.dtype == dtype or FORMATS[self.format].dequantize is not None:
            yield slice(None), self.dense(dtype)
            return
        assert self.scratch is not None, "a talker gives its narrow weights room"
        wide = self.scratch.view(dtype)
        for rows in _blocks(self.data.shape):
            narrow = self.data[rows]
            yield rows, wide[: narrow.numel()].view(narrow.shape).copy_(narrow)

    def take(self, index: torch.Tensor, out: torch.Tensor) -> None:
        """Write rows `index` [n] of a matrix that is not quantised to out [n, in]."""
        if self.data.dtype == out.dtype:
            torch.index_select(self.data, 0, index, out=out)
            return
        assert self.scratch is not None, "a talker gives its narrow weights room"
        narrow = self.scratch.view(self.data.dtype)[: out.numel()].view(out.shape)
        torch.index_select(self.data, 0, index, out=narrow)
        out.copy_(narrow)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def widened_bytes(shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Return the bytes of scratch that a bf16 matrix of this shape needs if torch computes in `dtype`."""
    return max(rows.stop - rows.start for rows in _blocks(shape)) * shape[1] * dtype.itemsize


@functools.cache
def _blocks(shape: tuple[int, int]) -> list[slice]:
    """Return the blocks of rows in which a matrix of this shape is widened.

    Libraries sum the rows of a tile alike, but those left over at the end in another order. So blocks are whole tiles,
    and the last one ends as the matrix does.
    """
    rows, width = shape
    block = max(1, WIDENED // (width * _TILE)) * _TILE
    begins = range(0, max(1, rows // _TILE * _TILE), block)
    return [slice(begin, end) for begin, end in zip(begins, [*begins[1:], rows], strict=True)]


def scratch_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of scratch that a quantised matrix of this shape needs if torch computes in `dtype`.

    The part after the matrix is for intermediates of dequantising, or for a bf16 matrix of half the size.
    """
    return math.prod(shape) * (dtype.itemsize + 1)
