"""The matrices that a training changes, their names in a file, and the memory needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..checkpoint.load import Checkpoint, talker_sizes
from ..checkpoint.open_talker import matrices
from ..checkpoint.talker_layout import untied
from ..core.config import EngineConfig
from ..device.memory import device_bytes
from .rows import POSITIONS

LARGE = 1 << 30  # bytes of weights from which layers are computed again instead of kept for the backward pass
_TABLES = ("embed_codes", "head_codes")


@dataclass(frozen=True)
class TrainedMatrix:
    """A trained matrix: its canonical name, and the rows of its parts under their names in a file.

    in_full: it is trained itself, not a change of low rank.
    """

    name: str
    parts: tuple[tuple[str, int], ...]
    width: int
    in_full: bool = False

    def shapes(self, rank: int) -> list[tuple[int, int]]:
        """Return the shapes of its numbers: of `a` and each `b`, or its own."""
        rows = [(count, rank) for _, count in self.parts]
        return [(self.parts[0][1], self.width)] if self.in_full else [(rank * len(rows), self.width), *rows]


def trained_parts(checkpoint: Checkpoint, codes_in_full: bool = False) -> list[TrainedMatrix]:
    """Return the matrices that get a change: queries, keys, values and output, gate, up and down of every layer.

    codes_in_full: also the code embedding and the head, which get numbers of their own, apart even if they were tied.
    """
    plan, free = checkpoint.plan, untied(checkpoint.plan, checkpoint.config.family)
    parts = []
    for name in matrices(plan):
        stored = [
            (source.stored[0] if len(source.stored) == 1 else plan.prefix + source.name, source.shape[0])
            for source in plan.parts[name]
        ]
        parts.append(TrainedMatrix(name, tuple(stored), plan.shape(name)[1]))
    for name in _TABLES if codes_in_full else ():
        (source,), own = free.parts[name], plan.parts.get(name)
        stored = source.stored[0] if own and len(source.stored) == 1 else source.name
        parts.append(TrainedMatrix(name, ((stored, source.shape[0]),), source.shape[1], in_full=True))
    return parts


def planned_bytes(
    checkpoint: Checkpoint,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    rank: int,
    codes_in_full: bool = False,
) -> int:
    """Return about the bytes that training takes on the device, without libraries' own."""
    model, sizes = checkpoint.config, talker_sizes(checkpoint, dtype, config.weights)
    parts = trained_parts(checkpoint, codes_in_full)
    numbers = sum(math.prod(shape) for part in parts for shape in part.shapes(rank))
    kept = model.layers if sum(sizes) < LARGE else 3
    a_layer = 2 * model.hidden + 4 * model.intermediate + 4 * (model.heads + model.kv_heads) * model.head_dim
    widths = model.layers * model.hidden + kept * 3 * a_layer
    head = model.codebooks * model.code_vocab * (dtype.itemsize + 3 * 4)
    # A copy of each table for its products, and their gradients.
    copies = [2 * model.codebooks * model.code_vocab * model.hidden * (dtype.itemsize + 4)] if codes_in_full else []
    return device_bytes([*sizes, *copies, *4 * [4 * numbers]], device) + POSITIONS * (widths * dtype.itemsize + head)
