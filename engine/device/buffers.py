"""Buffers of a decode step, declared with their shapes and allocated once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch


def buffer(
    *shape: str | int, dtype: torch.dtype | None = torch.int64, fill: float = 0, lasts: bool = False
) -> torch.Tensor:
    """Return a dataclass field for a tensor. `shape` may use the letters of `Buffers.sizes`; dtype None: the model's.

    lasts: a row [B, ...] is read again in the next step, so it moves with its sequence.
    Typed as the field's value, like `dataclasses.field`.
    """
    return field(init=False, repr=False, metadata={"shape": shape, "dtype": dtype, "fill": fill, "lasts": lasts})


@dataclass(eq=False)
class Buffers:
    """Base class that allocates the tensors its subclass declares with `buffer`.

    On the meta device it takes no memory and serves to compute sizes.

    sizes: letter -> size: B batch, K codebooks, V code vocabulary, S cache slots, H hidden, D head, ...
    """

    sizes: dict[str, int]
    device: torch.device
    dtype: torch.dtype

    def __post_init__(self) -> None:
        for declared in fields(self):
            if "shape" in declared.metadata:
                shape, dtype, fill = (declared.metadata[name] for name in ("shape", "dtype", "fill"))
                setattr(self, declared.name, self._make(shape, dtype, fill))
        if self.device.type != "meta":  # arithmetic on meta tensors imports torch's compiler, which takes seconds
            self.initialize()

    def initialize(self) -> None:
        """Initialize buffers that need more than one fill value."""

    def set_row(self, row: int, **values: float) -> None:
        """Fill a row of buffers by name. Unlike an assignment, this does not wait for the device."""
        for name, value in values.items():
            getattr(self, name)[row].fill_(value)

    def move_row(self, row: int, to: int) -> None:
        """Copy what lasts of a row to another one. Does not wait for the device."""
        for declared in fields(self):
            if declared.metadata.get("lasts"):
                values = getattr(self, declared.name)
                values[to].copy_(values[row])

    def _make(self, shape: tuple[str | int, ...], dtype: torch.dtype | None, fill: float) -> torch.Tensor:
        sizes = [size if isinstance(size, int) else self.sizes[size] for size in shape]
        return torch.full(sizes, fill, dtype=dtype or self.dtype, device=self.device)

    def count(self, size: str) -> torch.Tensor:
        """Return 0, 1, ... up to the letter's size, int64 on the device."""
        return torch.arange(self.sizes[size], dtype=torch.int64).to(self.device)

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]
