"""Matrix products of a batch with bf16 weights on Hopper's tensor cores (batch_dense.cuh)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...cuda.kernel import Limits
from ...cuda.nvrtc import compiler_version
from .batch_product import ROW_BLOCK, ProductBlock, ProductShape, cost

CAPABILITY, TARGET = "90", "90a"  # the one that has wgmma, and its architecture for the compiler
MIN_COMPILER = (12, 0)
THREADS = 128  # of a block, for every ROW_BLOCK rows
# Split-K: parts of each product, added up by the kernel that reads it. Fewer parts mean fewer blocks than
# multiprocessors, or smaller blocks, and every block reads all inputs of its part.
PARTS = {"qkv": 4, "out": 6, "gate_up": 1, "down": 6}
_FEATURES = (64, 128, 160, 192)  # of a block
_TILE = 64  # features of an instruction
_IN_FLIGHT = 160 << 10  # bytes of a block's pipeline


class Tiling(NamedTuple):
    """A block's features, and its pipeline's stages."""

    features: int
    stages: int


@dataclass(frozen=True)
class DenseShape(ProductShape):
    """For our products with bf16 weights."""

    row_tiles: int  # tiles of 8 rows
    tilings: Mapping[str, Tiling]  # by product
    parts = PARTS
    target = TARGET
    most_rows = 2 * ROW_BLOCK
    is_ours = True

    @property
    def attend_blocks(self) -> int:
        """Blocks of `attend` per multiprocessor. A third takes what a product of few rows needs to start early."""
        return 2 if self.row_tiles <= ROW_BLOCK // 8 else 3

    @property
    def threads(self) -> int:
        """Threads per block."""
        return -(-8 * self.row_tiles // ROW_BLOCK) * THREADS

    def shared(self, tiling: Tiling) -> int:
        """Return the bytes of dynamic shared memory per block."""
        return tiling.stages * _stage_bytes(self.row_tiles, tiling.features) + _unused_bytes(tiling.features)

    def defines(self) -> dict[str, object]:
        """Return the compiler options."""
        products = " ".join(f"PRODUCT({one.features},{one.stages})" for one in sorted({*self.tilings.values()}))
        return {"DENSE": 1, "ROW_TILES": self.row_tiles, "PRODUCTS": products}

    def block(self, name: str, features: int) -> ProductBlock:
        """Return the block that computes a product of so many features."""
        tiling = self.tilings[name]
        return ProductBlock(f"product_{tiling.features}", tiling.features, self.threads, self.shared(tiling))


def dense_shape(rows: int, limits: Limits, sizes: Mapping[str, tuple[int, int]]) -> ProductShape:
    """Return the shape of our products, or torch's on other GPUs, with an old compiler, or for a small matrix.

    sizes: (features, width) of each product.
    """
    if limits.capability != CAPABILITY or compiler_version() < MIN_COMPILER:
        return ProductShape()
    if any(width % 64 or width // 64 < PARTS[name] for name, (_, width) in sizes.items()):
        return ProductShape()
    row_tiles, tilings = 1 if rows <= 8 else -(-rows // 32) * 4, {}
    for name, (features, _) in sizes.items():
        rooms = {one: min(_IN_FLIGHT, limits.shared - _unused_bytes(one)) for one in _FEATURES}
        stages = {one: room // _stage_bytes(row_tiles, one) for one, room in rooms.items()}
        fitting = [Tiling(one, count) for one, count in stages.items() if count > 2 and one <= features]
        if not fitting:
            return ProductShape()
        tilings[name] = min(fitting, key=lambda one: cost(one.features, features, PARTS[name], limits.multiprocessors))
    return DenseShape(row_tiles, tilings)


def _stage_bytes(row_tiles: int, features: int) -> int:
    return (8 * row_tiles + features) * 128


def _unused_bytes(features: int) -> int:
    """Return what a block's last instruction reads past its features in the last stage."""
    return -features % _TILE * 128
