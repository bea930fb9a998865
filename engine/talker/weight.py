"""A weight matrix and how it is stored. A new format is a row in FORMATS and a struct in weight_format.cuh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """How a matrix is stored."""

    dtype: torch.dtype  # of Weight.data
    bits: int  # a weight, with everything that is stored beside it
    dense: Callable[[Weight], torch.Tensor]  # the matrix [out, in] in the dtype of activations, for torch's products
    cuda: str | None = None  # its struct in decode/kernels/weight_format.cuh; None: torch's ops alone can read it

    def bytes(self, weights: int) -> int:
        """Of so many weights."""
        return weights * self.bits // 8


FORMATS: dict[str, Format] = {
    "bf16": Format(torch.bfloat16, 16, lambda weight: weight.data, cuda="Bf16"),
    "fp32": Format(torch.float32, 32, lambda weight: weight.data),
}
_PLAIN = {format.dtype: name for name, format in FORMATS.items() if format.dtype.is_floating_point}


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix [out, in] for `linear` and its kin."""

    data: torch.Tensor
    format: str
    scale: torch.Tensor | None = None

    @classmethod
    def plain(cls, data: torch.Tensor) -> Weight:
        """A matrix as it is, in a floating-point dtype."""
        return cls(data, _PLAIN[data.dtype])

    def dense(self) -> torch.Tensor:
        """The matrix [out, in] as torch multiplies by it."""
        return FORMATS[self.format].dense(self)

    def tensors(self) -> list[torch.Tensor]:
        return [self.data] if self.scale is None else [self.data, self.scale]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())
