"""Static KV cache: keys and values of every position, and the slots that a step writes and may read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..device.buffers import Buffers, buffer


@dataclass(eq=False)
class KVCache(Buffers):
    """KV cache of B rows with S slots each. A row's prompt fills its first slots; each step takes the next slot."""

    keys: torch.Tensor = buffer("layers", "B", "kv_heads", "S", "D", dtype=None)
    values: torch.Tensor = buffer("layers", "B", "kv_heads", "S", "D", dtype=None)
    prompt_length: torch.Tensor = buffer("B")
    position: torch.Tensor = buffer("B")  # slot of the current step
    # For torch's attention only:
    slot_base: torch.Tensor = buffer("B", "kv_heads")  # a head's first slot in the flat cache [B * kv_heads * S, D]
    slot: torch.Tensor = buffer("B", "kv_heads")  # slot of the current step in the flat cache
    slot_index: torch.Tensor = buffer("S")  # 0..S-1
    empty: torch.Tensor = buffer("B", 1, "S", dtype=torch.bool)  # slots after the position

    # Filled slots per row, so that torch's attention reads no others. Only for an executor that runs the step's Python
    # every time, with the position on the host.
    filled: list[int] | None = field(init=False, default=None)
    tells_filled = False

    zero_empty = True  # torch's attention gives empty slots weight 0, but 0 * NaN is NaN; CUDA kernels skip them

    def initialize(self) -> None:
        heads = torch.arange(self.slot_base.numel(), dtype=torch.int64).view(self.slot_base.shape)
        self.slot_base.copy_(heads * self.sizes["S"])
        self.slot_index.copy_(self.count("S"))

    def start(self, row: int, prompt_length: int) -> None:
        """Set a row's position after its prompt, which fills its first slots."""
        self.set_row(row, prompt_length=prompt_length, position=prompt_length)
        self.clear_empty(row, prompt_length)

    def clear_empty(self, row: int, prompt_length: int) -> None:
        """Clear the slots after a row's prompt, if the backend needs that."""
        if self.zero_empty and not self.tells_filled:
            self.values[:, row, :, prompt_length:].zero_()

    def seek(self, num_generated: torch.Tensor) -> None:
        """Move to the step after `num_generated` [B] outputs. Past the end, stay in the last slot."""
        torch.add(self.prompt_length, num_generated, out=self.position)
        self.position.clamp_(max=self.sizes["S"] - 1)
        torch.add(self.slot_base, self.position.unsqueeze(1), out=self.slot)
        if self.tells_filled:
            self.filled = [position + 1 for position in self.position.tolist()]
        else:
            torch.gt(self.slot_index, self.position.view(-1, 1, 1), out=self.empty)
