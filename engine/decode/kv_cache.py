"""Static KV cache: keys and values of every position, the aligning heads' queries, and the slots that a step uses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..device.buffers import Buffers, buffer
from ..talker.config import Aligned


@dataclass(eq=False)
class KVCache(Buffers):
    """KV cache of B rows with S slots each. A row's prompt fills its first slots; each step takes the next slot.

    aligned: (layer, head) of the heads whose queries a step keeps too, sorted. The prompt's are not kept.
    """

    aligned: Aligned = ()
    keys: torch.Tensor = buffer("layers", "B", "kv_heads", "S", "D", dtype=None)
    values: torch.Tensor = buffer("layers", "B", "kv_heads", "S", "D", dtype=None)
    prompt_length: torch.Tensor = buffer("B", lasts=True)
    position: torch.Tensor = buffer("B", lasts=True)  # slot of the current step
    queries: torch.Tensor = buffer("aligned", "B", "S", "D", dtype=None)
    # For torch's attention only:
    slot_base: torch.Tensor = buffer("B", "kv_heads")  # a head's first slot in the flat cache [B * kv_heads * S, D]
    slot: torch.Tensor = buffer("B", "kv_heads")  # slot of the current step in the flat cache
    slot_index: torch.Tensor = buffer("S")  # 0..S-1
    empty: torch.Tensor = buffer("B", 1, "S", dtype=torch.bool)  # slots after the position
    row_base: torch.Tensor = buffer("B")  # a row's first slot in one head's queries [B * S, D]
    query_slot: torch.Tensor = buffer("B")  # slot of the current step there

    # Filled slots per row if the host knows them, so that torch's attention reads no others.
    filled: list[int] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.sizes = self.sizes | {"aligned": len(self.aligned)}
        super().__post_init__()

    def initialize(self) -> None:
        heads = torch.arange(self.slot_base.numel(), dtype=torch.int64).view(self.slot_base.shape)
        self.slot_base.copy_(heads * self.sizes["S"])
        self.slot_index.copy_(self.count("S"))
        self.row_base.copy_(self.count("B") * self.sizes["S"])

    def start(self, row: int, prompt_length: int, clear: bool = True) -> None:
        """Set a row's position after its prompt, which fills its first slots.

        clear: zero the other slots. Torch's attention gives them weight 0 if it reads them, but 0 * NaN is NaN.
        """
        self.set_row(row, prompt_length=prompt_length, position=prompt_length)
        if clear:
            self.values[:, row, :, prompt_length:].zero_()

    def row(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a row's keys and values [layers, kv_heads, S, D], views."""
        return self.keys[:, row], self.values[:, row]

    def move(self, row: int, to: int, filled: int) -> None:
        """Copy a row with its first `filled` slots to another one."""
        self.move_row(row, to)
        for held in (self.keys, self.values):
            held[:, to, :, :filled].copy_(held[:, row, :, :filled])
        self.queries[:, to, :filled].copy_(self.queries[:, row, :filled])

    def seek(self, num_generated: torch.Tensor) -> None:
        """Move to the step after `num_generated` [B] outputs. Past the end, stay in the last slot."""
        torch.add(self.prompt_length, num_generated, out=self.position)
        self.position.clamp_(max=self.sizes["S"] - 1)
        torch.add(self.slot_base, self.position.unsqueeze(1), out=self.slot)
        if self.aligned:
            torch.add(self.row_base, self.position, out=self.query_slot)

    def mask_empty(self) -> None:
        """Mask the slots after the position, for an attention that reads all."""
        torch.gt(self.slot_index, self.position.view(-1, 1, 1), out=self.empty)

    def keep_queries(self, layer: int, queries: torch.Tensor) -> None:
        """Keep the aligning heads' part of a layer's queries [B, heads, D] of the current step."""
        for number, (own, head) in enumerate(self.aligned):
            if own == layer:
                kept = self.queries[number].view(-1, self.sizes["D"])
                kept.index_copy_(0, self.query_slot, queries[:, head])

    def layer_queries(self, layer: int) -> tuple[torch.Tensor | None, int]:
        """Return a layer's part of the queries, [n, B, S, D], and its n heads as bits. None if it has none."""
        numbers = [number for number, (own, _) in enumerate(self.aligned) if own == layer]
        heads = sum(1 << head for own, head in self.aligned if own == layer)
        return (self.queries[numbers[0] : numbers[-1] + 1], heads) if numbers else (None, 0)

    def row_queries(self, row: int, start: int, stop: int) -> torch.Tensor:
        """Return the aligning heads' queries [aligned, stop - start, D] of a row's slots, a view."""
        return self.queries[:, row, start:stop]

    def row_keys(self, row: int, start: int, stop: int) -> torch.Tensor:
        """Return the keys [aligned, stop - start, D] of a row's slots that the aligning heads attend to."""
        group = self.sizes["heads"] // self.sizes["kv_heads"]
        return torch.stack([self.keys[layer, row, head // group, start:stop] for layer, head in self.aligned])
