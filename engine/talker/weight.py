"""Weight matrices and their storage formats. A new format is a row in FORMATS and a struct in weight_format.cuh."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..device.torch_names import half_product, pack_half
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


class HalfMatrix:
    """A bf16 matrix [out, in] for products with fp32 inputs on a CPU, read in two bytes a weight.

    It is held in fp16, times a power of two that brings its largest weight below 2 ** 15. So weights are exact down to
    2 ** -31 of that, and smaller ones to 2 ** -39.
    """

    def __init__(self, data: torch.Tensor):
        self._unit = 2.0 ** (math.frexp(float(data.abs().max()))[1] - 15)
        self._packed = pack_half(data.float().div_(self._unit))

    def write(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out = x @ W.T, with x [R, in] and out [R, out]. Allocates."""
        torch.mul(half_product(x, self._packed), self._unit, out=out)

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute out += x @ W.T."""
        out.add_(half_product(x, self._packed), alpha=self._unit)


@dataclass(eq=False)
class Weight:
    """Weight matrix [out, in] for `linear` and related ops.

    scratch: shared buffer for torch's products, into which a quantised matrix is dequantised (see `scratch_bytes`).
    """

    data: torch.Tensor
    scratch: torch.Tensor | None = None
    half: HalfMatrix | None = None  # what torch's products use instead of `data`

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

    def halve(self) -> None:
        """Keep a bf16 matrix for products with fp32 inputs. `data` then has a shape only."""
        self.half, self.data = HalfMatrix(self.data), self.data.to("meta")

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def scratch_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of scratch that a quantised matrix of this shape needs if torch computes in `dtype`.

    The part after the matrix is for intermediates of dequantising, or for a bf16 matrix of half the size.
    """
    return math.prod(shape) * (dtype.itemsize + 1)
