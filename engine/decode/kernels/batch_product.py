"""Matrix products of a batch: torch's, and ours for 8-bit and 4-bit weights (batch_product.cuh)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...cuda.kernel import ANY, Arguments, Limits, structure
from ...cuda.nvrtc import Module, launch
from ...talker import Talker
from ...talker.ops.linear import linear, split_linear
from ...talker.weight import FORMATS, Weight

MIN_CAPABILITY = 80  # first with bf16 tensor cores
THREADS = 256
ROW_BLOCK = 64  # rows of a product are padded to a multiple
PARTS = {"qkv": 1, "out": 4, "gate_up": 1, "down": 4}  # of the inputs: a product with few outputs is split
_MAX_TILES = 5  # tiles of 16 features per unit; their sums for 64 rows fit the registers
# Bytes of a warp's step per tile; see Stages in the source.
_STEP_BYTES = {"int8": 16 * 64, "q8_0": 16 * (64 + 4), "int4": 16 * (32 + 4)}
_FEW_ROWS = 16
_IN_FLIGHT, _IN_FLIGHT_MANY = 160 << 10, 104 << 10  # bytes of weights per block; inputs of many rows need part of L1

ProductArgs = structure(
    "ProductArgs",
    weights=ANY,
    x=torch.bfloat16,
    out=torch.bfloat16,
    features=ctypes.c_int,
    width=ctypes.c_int,
    parts=ctypes.c_int,
)

Scratch = dict[str, torch.Tensor]


def padded(rows: int) -> int:
    """Return the rows of the scratch for so many rows."""
    return -(-rows // ROW_BLOCK) * ROW_BLOCK


# Product of a layer -> its input and output in the scratch. qkv and delta take the parts of a sum.
_OPERANDS = {"qkv": ("h", "qkv"), "out": ("attended", "delta"), "gate_up": ("h", "gate_up"), "down": ("act", "delta")}


class TorchProducts:
    """Products by torch over padded rows. A quantised matrix is dequantised for each product."""

    def __init__(self, talker: Talker, scratch: Scratch, shape: ProductShape) -> None:
        self._head, self._scratch = talker.head_codes, scratch
        self._operands = {}
        for name, (x, out) in _OPERANDS.items():
            to, count = scratch["act" if shape.gates and name == "gate_up" else out], shape.parts[name]
            self._operands[name] = scratch[x], to if to.dim() == 2 else to[:count] if count > 1 else to[0]
        self._weights = [
            {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.code.gate_up, "down": layer.code.down}
            for layer in talker.layers
        ]

    def run(self, name: str, index: int) -> None:
        """Multiply by the matrix `name` of layer `index`."""
        x, out = self._operands[name]
        multiply = linear if out.dim() == 2 else split_linear
        multiply(x, self._weights[index][name], out)

    def head(self, rows: int) -> None:
        """Multiply scratch h -> head, always so many rows at a time that bits do not depend on their number."""
        inputs, outputs = (self._scratch[name][: padded(rows)].split(ROW_BLOCK) for name in ("h", "head"))
        for x, out in zip(inputs, outputs, strict=True):
            linear(x, self._head, out)


class ProductBlock(NamedTuple):
    """A kernel of ours, and what one of its blocks needs."""

    kernel: str
    features: int  # of the output that it computes at a time
    threads: int
    shared: int  # bytes of dynamic shared memory


class ProductShape:
    """Compile-time settings of a batch's kernels that depend on the kind of product. Here for torch's."""

    parts: Mapping[str, int] = PARTS
    target: str | None = None  # the compiler's name for the GPU, if not its compute capability
    attend_blocks = 3  # of `attend` per multiprocessor
    most_rows = ROW_BLOCK
    is_ours = False
    gates = False  # whether gate_up's product also applies the gate
    arguments: type[Arguments] = ProductArgs  # of a product's kernel

    def defines(self) -> dict[str, object]:
        """Return the compiler options."""
        return {}

    def block(self, name: str, features: int) -> ProductBlock:
        """Return the block that computes a product of so many features. Only for products of ours."""
        raise NotImplementedError

    def argument(self, name: str, weight: Weight, x: torch.Tensor, out: torch.Tensor) -> Arguments:
        """Return the argument of a product's launch. Only for products of ours."""
        (features, width), parts = weight.shape, self.parts[name]
        return self.arguments.of(weights=weight.data, x=x, out=out, features=features, width=width, parts=parts)

    def products(self, talker: Talker, scratch: Scratch, module: Module, limits: Limits) -> TorchProducts:
        if self.is_ours:
            return OurProducts(talker, scratch, module, self, limits)
        return TorchProducts(talker, scratch, self)


@dataclass(frozen=True)
class QuantisedShape(ProductShape):
    """For our products with quantised weights."""

    weights: str  # name of the format
    row_tiles: int  # tiles of 8 rows
    depths: dict[int, int]  # a kernel's tiles of 16 features per unit -> steps in flight per warp
    multiprocessors: int
    is_ours = True

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory per block."""
        steps = max(depth * _step_bytes(self.weights, tiles) for tiles, depth in self.depths.items())
        return _sum_bytes(self.row_tiles) + steps

    def tiles(self, features: int, parts: int) -> int:
        """Return the tiles per unit that give the busiest block the least work. Ties go to more tiles."""
        return min(self.depths, key=lambda tiles: cost(16 * tiles, features, parts, self.multiprocessors))

    def block(self, name: str, features: int) -> ProductBlock:
        tiles = self.tiles(features, self.parts[name])
        return ProductBlock(f"product_{tiles}", 16 * tiles, THREADS, self.shared)

    def defines(self) -> dict[str, object]:
        return {
            "FORMAT": FORMATS[self.weights].cuda,
            "ROW_TILES": self.row_tiles,
            "MAX_TILES": _MAX_TILES,
            "PRODUCTS": " ".join(f"PRODUCT({tiles}, {depth})" for tiles, depth in self.depths.items()),
            "PRODUCT_THREADS": THREADS,
            "PRODUCT_SHARED": self.shared,
        }


def quantised_shape(weights: str, rows: int, limits: Limits, sizes: Mapping[str, tuple[int, int]]) -> ProductShape:
    """Return the shape of our products, or torch's if the GPU is old or has too little shared memory.

    sizes: (features, width) of each product.
    """
    if int(limits.capability) < MIN_CAPABILITY:
        return ProductShape()
    row_tiles = -(-rows // 8)
    in_flight = _IN_FLIGHT if rows <= _FEW_ROWS else _IN_FLIGHT_MANY
    room = min(in_flight, limits.shared - _sum_bytes(row_tiles))
    depths = {tiles: room // _step_bytes(weights, tiles) for tiles in range(1, _MAX_TILES + 1)}
    if not (depths := {tiles: depth for tiles, depth in depths.items() if depth > 1}):
        return ProductShape()
    shape = QuantisedShape(weights, row_tiles, depths, limits.multiprocessors)
    used = {shape.tiles(features, PARTS[name]) for name, (features, _) in sizes.items()}
    return replace(shape, depths={tiles: depth for tiles, depth in depths.items() if tiles in used})


def _step_bytes(weights: str, tiles: int) -> int:
    return THREADS // 32 * tiles * _STEP_BYTES[weights]


def _sum_bytes(row_tiles: int) -> int:
    return THREADS // 32 * 8 * row_tiles * (16 + 4) * 4 + _MAX_TILES * 16 * 4


def num_items(of_block: int, features: int, parts: int) -> int:
    """Return the work items of a product whose blocks compute `of_block` features of one part at a time."""
    return -(-features // of_block) * parts


def cost(of_block: int, features: int, parts: int, multiprocessors: int) -> tuple[int, int]:
    """Return the features of the busiest multiprocessor. Ties go to larger blocks, which read fewer inputs."""
    return -(-num_items(of_block, features, parts) // multiprocessors) * of_block, -of_block


class OurProducts(TorchProducts):
    """The layers' products by our kernels, the head's by torch. Padding rows are zero."""

    def __init__(self, talker: Talker, scratch: Scratch, module: Module, shape: ProductShape, limits: Limits) -> None:
        super().__init__(talker, scratch, shape)
        self._limits, self._shape = limits, shape
        self._blocks = {name: shape.block(name, weight.shape[0]) for name, weight in self._weights[0].items()}
        self._functions = {one.kernel: module.function(one.kernel, one.shared) for one in {*self._blocks.values()}}
        self._calls = [
            {name: self._call(name, weight) for name, weight in weights.items()} for weights in self._weights
        ]

    def _call(self, name: str, weight: Weight) -> tuple[int, Arguments]:
        """Return (number of blocks, argument) of a launch."""
        items = num_items(self._blocks[name].features, weight.shape[0], self._shape.parts[name])
        argument = self._shape.argument(name, weight, *self._operands[name])
        return min(self._limits.multiprocessors, items), argument

    def run(self, name: str, index: int) -> None:
        block, (blocks, argument) = self._blocks[name], self._calls[index][name]
        function, overlapping = self._functions[block.kernel], self._limits.overlapping
        launch(function, blocks, block.threads, argument, shared=block.shared, overlapping=overlapping)
