"""Tensors that a decode step reads and writes: declared with their shapes and allocated once. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch


def buffer(*shape: str | int, dtype: torch.dtype | None = torch.int64, fill: float = 0) -> torch.Tensor:
    """A dataclass field for a tensor of `shape`, in letters that `Buffers.sizes` tells; dtype None: the model's.

    Typed as what the field holds, as `dataclasses.field` is.
    """
    return field(init=False, repr=False, metadata={"shape": shape, "dtype": dtype, "fill": fill})


@dataclass(eq=False)
class Buffers:
    """Allocates what its subclass declares with `buffer`. On the meta device it takes no memory and has a price.

    sizes: what the letters stand for: B batch, K codebooks, V code vocabulary, S cache slots, H hidden, D head, ...
    """

    sizes: dict[str, int]
    device: torch.device
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for declared in fields(self):
            if "shape" in declared.metadata:
                setattr(self, declared.name, self._make(**declared.metadata))
        if self.device.type != "meta":  # there, arithmetic imports torch's compiler, which takes seconds
            self.initialize()

    def initialize(self) -> None:
        """Gives buffers what one fill value cannot say."""

    def _make(self, shape: tuple[str | int, ...], dtype: torch.dtype | None, fill: float) -> torch.Tensor:
        sizes = [size if isinstance(size, int) else self.sizes[size] for size in shape]
        return torch.full(sizes, fill, dtype=dtype or self.dtype, device=self.device)

    def count(self, size: str) -> torch.Tensor:
        """0, 1, ... int64, as many as the letter says, on the device."""
        return torch.arange(self.sizes[size], dtype=torch.int64).to(self.device)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor."""
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]
