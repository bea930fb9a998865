"""A weight matrix and how it is stored. A new format is a row in FORMATS and a struct in weight_format.cuh."""

from __future__ import annotations

import math
from collections.abc import Callable
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

SCRATCH = "scratch"  # beside the tensors of a talker with quantised weights, see Weight.scratch


@dataclass(frozen=True)
class Format:
    """How a matrix is stored: by rows, and a row as whole blocks."""

    dtype: torch.dtype  # of Weight.data, and of no other format's
    block: int  # weights
    block_bytes: int  # with what is stored beside them
    scale_bytes: int = 0  # of a row, after its blocks
    cuda: str | None = None  # its struct in decode/kernels/weight_format.cuh; None: torch's ops alone can read it
    quantize: Callable[[torch.Tensor, torch.Tensor], None] | None = None  # (matrix, out=data)
    dequantize: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None  # (data, out=matrix, spare)
    scales: Callable[[torch.Tensor], torch.Tensor] | None = None  # data -> what its codes are multiplied by
    largest: int = 1  # of its codes

    @property
    def bits(self) -> float:
        """Of a weight, a row's scales aside."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, weights: int) -> int:
        """Of a row of so many weights, which are whole blocks."""
        return weights // self.block * self.block_bytes + self.scale_bytes


# q8_0's rows are no 16-bit numbers: the dtype only tells it from the others.
FORMATS: dict[str, Format] = {
    "bf16": Format(torch.bfloat16, 1, 2, cuda="Bf16"),
    "fp32": Format(torch.float32, 1, 4),
    "int8": Format(torch.int8, BLOCK, BLOCK, INT8_SCALE, "Int8", quantize_int8, dequantize_int8, int8_scales, 127),
    "int4": Format(torch.uint8, BLOCK, INT4_BLOCK, 0, "Int4", quantize_int4, dequantize_int4, int4_scales, 8),
    "q8_0": Format(torch.int16, BLOCK, Q8_0_BLOCK, 0, "Q8_0", quantize_q8_0, dequantize_q8_0, q8_0_scales, 127),
}
KEPT_BY = {"q8_0": "int8"}  # a format that only files have -> EngineConfig's dtype that keeps it
_OF_DTYPE = {format.dtype: name for name, format in FORMATS.items()}


def is_layer_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True if a canonical tensor is what may be quantised: the matrices of layers, not embeddings, head and norms."""
    return name.startswith("layers.") and len(shape) == 2


def format_of(dtype: torch.dtype) -> Format:
    """Of a tensor by its dtype."""
    return FORMATS[_OF_DTYPE[dtype]]


@dataclass(eq=False)
class Weight:
    """A matrix [out, in] for `linear` and its kin.

    scratch: where a quantised one is written out for torch's products, one after another; see `scratch_bytes`.
    """

    data: torch.Tensor
    scratch: torch.Tensor | None = None

    @property
    def format(self) -> str:
        """Its name in FORMATS."""
        return _OF_DTYPE[self.data.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        format = FORMATS[self.format]
        row_bytes = self.data.shape[1] * format.dtype.itemsize - format.scale_bytes
        return len(self.data), row_bytes // format.block_bytes * format.block

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix [out, in] as torch multiplies by it; a quantised one in `dtype`, and valid until the next."""
        dequantize = FORMATS[self.format].dequantize
        if dequantize is None:
            return self.data
        assert self.scratch is not None, "a talker gives its quantised weights room"
        out, width = self.shape
        size = out * width * dtype.itemsize
        matrix = self.scratch[:size].view(dtype).view(out, width)
        dequantize(self.data, matrix, self.scratch[size:])
        return matrix

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def scratch_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Of the scratch that a quantised matrix of that shape needs where torch computes in `dtype`."""
    return math.prod(shape) * dtype.itemsize + math.prod(shape) // 2
