"""Matrix products of a batch on Hopper's tensor cores (batch_dense.cuh)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...cuda.kernel import ANY, Arguments, Limits, structure
from ...cuda.nvrtc import TENSOR_MAP, compiler_version, tensor_map
from ...talker.weight import FORMATS, Weight
from .batch_product import ROW_BLOCK, ProductBlock, ProductShape, cost

CAPABILITY, TARGET = "90", "90a"  # the one that has wgmma, and its architecture for the compiler
MIN_COMPILER = (12, 0)
# Split-K: parts of each product, added up by the kernel that reads it. Fewer parts mean fewer blocks than
# multiprocessors, or smaller blocks, and every block reads all inputs of its part.
PARTS = {"qkv": 4, "out": 6, "gate_up": 1, "down": 6}
_FEATURES = (64, 128, 160, 192)  # of a block
_TILE = 64  # features of an instruction
_BARRIERS = 256  # bytes of shared memory, eight for each stage


class Resources(NamedTuple):
    """A stage, and limits of products, in one weight format."""

    inputs: int  # values of k
    feature_bytes: int  # of a feature's weights, and of 512 weights' scales
    shared: int  # maximum bytes of shared memory per block, without barriers
    most_rows: int


# Not q8_0: it scales the sum of every 32 inputs.
_RESOURCES = {
    "bf16": Resources(64, 128, 160 << 10, 2 * ROW_BLOCK),
    "int8": Resources(128, 128, 140 << 10, ROW_BLOCK),
    "int4": Resources(256, 128 + 16, 164 << 10, ROW_BLOCK),
}
MAX_ROWS = max(one.most_rows for one in _RESOURCES.values())


DenseArgs = structure(
    "DenseArgs",
    alignment=64,
    codes=TENSOR_MAP,
    scales=TENSOR_MAP,
    x=TENSOR_MAP,
    weights=ANY,
    out=torch.bfloat16,
    features=ctypes.c_int,
    width=ctypes.c_int,
    parts=ctypes.c_int,
)


class Tiling(NamedTuple):
    """A block's features and warpgroups, and its pipeline's stages."""

    features: int
    warpgroups: int
    stages: int
    gated: bool = False  # half of the features gate the others, see the source

    @property
    def kernel(self) -> str:
        return f"{'gated' if self.gated else 'product'}_{self.features}"

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups


@dataclass(frozen=True)
class DenseShape(ProductShape):
    """For our products with wgmma."""

    weights: str  # name of the format
    row_tiles: int  # tiles of 8 rows
    tilings: Mapping[str, Tiling]  # by product
    arguments = DenseArgs
    parts = PARTS
    target = TARGET
    is_ours = gates = True

    @property
    def most_rows(self) -> int:
        return _RESOURCES[self.weights].most_rows

    @property
    def attend_blocks(self) -> int:
        """Blocks of `attend` per multiprocessor. A third takes what a product of few rows needs to start early."""
        return 2 if self.row_tiles <= ROW_BLOCK // 8 else 3

    def shared(self, tiling: Tiling) -> int:
        """Return the bytes of dynamic shared memory per block."""
        staged = tiling.stages * _stage_bytes(self.weights, self.row_tiles, tiling.features)
        return staged + _other_bytes(self.weights, tiling.features) + _BARRIERS

    def defines(self) -> dict[str, object]:
        return {
            "DENSE": 1,
            "FORMAT": FORMATS[self.weights].cuda,
            "ROW_TILES": self.row_tiles,
            "PRODUCTS": " ".join(
                f"PRODUCT({one.kernel},{one.features},{one.warpgroups},{one.stages},{one.gated:d})"
                for one in sorted({*self.tilings.values()})
            ),
        }

    def argument(self, name: str, weight: Weight, x: torch.Tensor, out: torch.Tensor) -> Arguments:
        (features, width), tiling = weight.shape, self.tilings[name]
        # Of a matrix: bytes, eight features, the two halves of sixteen, sixteens. Of the inputs: bytes, rows, slabs.
        half, sixteen = (features // 2, 8) if tiling.gated else (8, 16)
        row, sixteens = weight.data[0].nbytes, tiling.features // 16
        matrix = weight.data, (row, 8, 2, features // 16), (row, row * half, row * sixteen)
        inputs = x, (128, len(x), width // 64, 1), (width * 2, 128, 128)
        return self.arguments.of(
            codes=tensor_map(*matrix, (128, 8, 2, sixteens)),
            scales=tensor_map(*matrix, (16, 8, 2, sixteens), swizzle=False),
            x=tensor_map(*inputs, (128, 8 * self.row_tiles, _RESOURCES[self.weights].inputs // 64, 1)),
            weights=weight.data,
            out=out,
            features=features,
            width=width,
            parts=self.parts[name],
        )

    def block(self, name: str, features: int) -> ProductBlock:
        tiling = self.tilings[name]
        return ProductBlock(tiling.kernel, tiling.features, tiling.threads, self.shared(tiling))


def dense_shape(weights: str, rows: int, limits: Limits, sizes: Mapping[str, tuple[int, int]]) -> DenseShape | None:
    """Return the shape of our products, or None on other GPUs, with an old compiler, or if a matrix does not fit them.

    sizes: (features, width) of each product.
    """
    if weights not in _RESOURCES or limits.capability != CAPABILITY or compiler_version() < MIN_COMPILER:
        return None
    stage = _RESOURCES[weights].inputs
    if any(n % 16 or width % stage or width // stage < PARTS[name] for name, (n, width) in sizes.items()):
        return None
    row_tiles, tilings = -(-rows // 8) if rows <= 16 else -(-rows // 32) * 4, {}
    room = min(_RESOURCES[weights].shared, limits.shared - _BARRIERS)
    every = [_tiling(weights, row_tiles, features, room) for features in _FEATURES]
    for name, (features, _) in sizes.items():
        fitting = [one for one in every if one.stages > 2 and one.features <= features]
        if not fitting:
            return None
        best = min(fitting, key=lambda one: cost(one.features, features, PARTS[name], limits.multiprocessors))
        tilings[name] = best._replace(gated=name == "gate_up")
    return DenseShape(weights, row_tiles, tilings)


def _tiling(weights: str, row_tiles: int, features: int, room: int) -> Tiling:
    """Return a block with as many stages as there is room for. The source asserts its number of warpgroups."""
    warpgroups = 1 if weights == "bf16" else -(-features // _TILE)
    stages = (room - _other_bytes(weights, features)) // _stage_bytes(weights, row_tiles, features)
    return Tiling(features, warpgroups, stages)


def _stage_bytes(weights: str, row_tiles: int, features: int) -> int:
    return 8 * row_tiles * _RESOURCES[weights].inputs * 2 + features * _RESOURCES[weights].feature_bytes


def _other_bytes(weights: str, features: int) -> int:
    """Return the bytes that a block's last instruction reads past its features."""
    return -features % _TILE * 128 if weights == "bf16" else 0
