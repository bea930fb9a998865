"""Matrix products of a batch with bf16 weights on Hopper's tensor cores (batch_dense.cuh)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...cuda.kernel import Arguments, Limits
from ...cuda.nvrtc import Module, compiler_version, launch
from ...talker import Talker
from ...talker.weight import Weight
from .batch_product import ProductArgs, ProductShape, Scratch, TorchProducts

CAPABILITY, TARGET = "90", "90a"  # the one that has wgmma, and its architecture for the compiler
MIN_COMPILER = (12, 0)
THREADS = 128
# Split-K: parts of each product, added up by the kernel that reads it. Fewer parts mean fewer blocks than
# multiprocessors, or smaller blocks, and every block reads all inputs of its part.
PARTS = {"qkv": 4, "out": 6, "gate_up": 1, "down": 6}
_FEATURES = (64, 128, 160, 192)  # of a block
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
    attend_blocks = 2  # a third would take the registers that the next product needs to start early
    is_ours = True

    def shared(self, tiling: Tiling) -> int:
        """Return the bytes of dynamic shared memory per block."""
        return tiling.stages * _stage_bytes(self.row_tiles, tiling.features)

    def defines(self) -> dict[str, object]:
        """Return the compiler options."""
        products = " ".join(f"PRODUCT({one.features},{one.stages})" for one in sorted({*self.tilings.values()}))
        return {"DENSE": 1, "ROW_TILES": self.row_tiles, "PRODUCTS": products}

    def products(self, talker: Talker, scratch: Scratch, module: Module, limits: Limits) -> TorchProducts:
        """Make the products."""
        return DenseProducts(talker, scratch, module, self, limits)


def dense_shape(rows: int, limits: Limits, sizes: Mapping[str, tuple[int, int]]) -> ProductShape:
    """Return the shape of our products, or torch's on other GPUs, with an old compiler, or for a small matrix.

    sizes: (features, width) of each product.
    """
    if limits.capability != CAPABILITY or compiler_version() < MIN_COMPILER:
        return ProductShape()
    if any(width % 64 or width // 64 < PARTS[name] for name, (_, width) in sizes.items()):
        return ProductShape()
    row_tiles, tilings = -(-rows // 8), {}
    for name, (features, _) in sizes.items():
        stages = {one: min(_IN_FLIGHT, limits.shared) // _stage_bytes(row_tiles, one) for one in _FEATURES}
        fitting = [Tiling(one, count) for one, count in stages.items() if count > 2 and one <= features]
        if not fitting:
            return ProductShape()
        tilings[name] = min(fitting, key=lambda one: _cost(one, features, PARTS[name], limits.multiprocessors))
    return DenseShape(row_tiles, tilings)


def _cost(tiling: Tiling, features: int, parts: int, multiprocessors: int) -> tuple[int, int]:
    """Return the features of the busiest multiprocessor. Ties go to larger blocks, which read fewer inputs."""
    items = -(-features // tiling.features) * parts
    return -(-items // multiprocessors) * tiling.features, -tiling.features


def _stage_bytes(row_tiles: int, features: int) -> int:
    return (8 * row_tiles + features) * 128


class DenseProducts(TorchProducts):
    """The layers' products by our kernels, the head's by torch."""

    def __init__(self, talker: Talker, scratch: Scratch, module: Module, shape: DenseShape, limits: Limits) -> None:
        super().__init__(talker, scratch, shape.parts)
        self._shape, self._limits = shape, limits
        self._functions = {
            one: module.function(f"product_{one.features}", shape.shared(one)) for one in shape.tilings.values()
        }
        self._calls = [{name: self._call(name, weight) for name, weight in one.items()} for one in self._weights]

    def _call(self, name: str, weight: Weight) -> tuple[int, Arguments]:
        """Return (number of blocks, argument) of a launch."""
        (features, width), (x, out), parts = weight.shape, self._operands[name], self._shape.parts[name]
        argument = ProductArgs.of(weights=weight.data, x=x, out=out, features=features, width=width, parts=parts)
        items = -(-features // self._shape.tilings[name].features) * parts
        return min(self._limits.multiprocessors, items), argument

    def run(self, name: str, index: int) -> None:
        tiling, (blocks, argument) = self._shape.tilings[name], self._calls[index][name]
        launch(self._functions[tiling], blocks, THREADS, argument, shared=self._shape.shared(tiling), overlapping=True)
