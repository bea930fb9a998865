"""The matrix products of a batch: torch's, or for weights in 8 and 4 bits ours (batch_product.cuh)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from ...cuda.kernel import ANY, Arguments, Limits, structure
from ...cuda.nvrtc import Module, launch
from ...talker import Talker
from ...talker.ops.linear import linear, split_linear
from ...talker.weight import FORMATS, Weight

MIN_CAPABILITY = 80  # whose tensor cores multiply bf16
THREADS = 256
_LANE = {"int8": 16 + 8, "int4": 8 + 4}  # bytes that a lane copies of a matrix row at a step, see Step in the source
_IN_FLIGHT = 72 << 10  # bytes of weights, a block: enough to keep the memory busy
_RESERVED = 1 << 10  # bytes of shared memory that a block takes beside its own

ProductArgs = structure(
    "ProductArgs",
    weights=ANY,
    x=torch.bfloat16,
    out=torch.bfloat16,
    features=ctypes.c_int,
    width=ctypes.c_int,
    parts=ctypes.c_int,
)


class TorchProducts:
    """Products by torch, of padded rows; a quantised matrix is written out for each."""

    def __init__(self, talker: Talker, scratch: dict[str, torch.Tensor]) -> None:
        self._layers, self._head, self._scratch = talker.layers, talker.head_codes, scratch

    def qkv(self, index: int) -> None:
        """scratch h -> qkv, in layer `index`."""
        linear(self._scratch["h"], self._layers[index].qkv, self._scratch["qkv"])

    def out(self, index: int) -> None:
        """scratch attended -> delta, in parts."""
        split_linear(self._scratch["attended"], self._layers[index].out, self._scratch["delta"])

    def gate_up(self, index: int) -> None:
        """scratch h -> gate_up."""
        linear(self._scratch["h"], self._layers[index].code.gate_up, self._scratch["gate_up"])

    def down(self, index: int) -> None:
        """scratch act -> delta, in parts."""
        split_linear(self._scratch["act"], self._layers[index].code.down, self._scratch["delta"])

    def head(self) -> None:
        """scratch h -> head."""
        linear(self._scratch["h"], self._head, self._scratch["head"])


@dataclass(frozen=True)
class Shape:
    """What `product` is compiled for."""

    weights: str  # the format's name
    row_tiles: int  # eighths of the rows
    tiles: int  # sixteenths of a unit's features
    depth: int  # steps in flight, a warp
    blocks_per_sm: int

    @property
    def shared(self) -> int:
        """A block's dynamic shared memory in bytes."""
        return self.depth * _step_bytes(self.weights, self.tiles) + _sum_bytes(self.row_tiles, self.tiles)

    def defines(self) -> dict[str, object]:
        """Compiler options."""
        return {
            "FORMAT": FORMATS[self.weights].cuda,
            "ROW_TILES": self.row_tiles,
            "TILES": self.tiles,
            "DEPTH": self.depth,
            "PRODUCT_THREADS": THREADS,
            "PRODUCT_BLOCKS": self.blocks_per_sm,
            "PRODUCT_SHARED": self.shared,
        }


def shape_for(weights: str, rows: int, limits: Limits) -> Shape | None:
    """None where torch's products serve: dense weights, an older GPU, or too little shared memory.

    With few rows a block mostly waits, so an SM has two; with many, a unit's features share the inputs that it reads.
    """
    if not FORMATS[weights].quantize or int(limits.capability) < MIN_CAPABILITY:
        return None
    row_tiles = -(-rows // 8)
    for tiles, blocks_per_sm in ((1, 2),) if row_tiles <= 2 else ((2, 1), (1, 1)):
        room = limits.shared // blocks_per_sm - _RESERVED - _sum_bytes(row_tiles, tiles)
        depth = min(_IN_FLIGHT, room) // _step_bytes(weights, tiles)
        if depth > 1:
            return Shape(weights, row_tiles, tiles, depth, blocks_per_sm)
    return None


def _step_bytes(weights: str, tiles: int) -> int:
    return THREADS * 2 * tiles * _LANE[weights]


def _sum_bytes(row_tiles: int, tiles: int) -> int:
    return THREADS // 32 * 8 * row_tiles * (16 * tiles + 4) * 4


class QuantisedProducts(TorchProducts):
    """The layers' products by our kernels; the head's by torch. Rows behind the batch's hold zeros."""

    def __init__(
        self, talker: Talker, scratch: dict[str, torch.Tensor], module: Module, shape: Shape, multiprocessors: int
    ) -> None:
        super().__init__(talker, scratch)
        self._blocks, self._shape = multiprocessors * shape.blocks_per_sm, shape
        self._function = module.function("product", shape.shared)
        self._calls = [
            {
                "qkv": self._call(layer.qkv, "h", "qkv"),
                "out": self._call(layer.out, "attended", "delta"),
                "gate_up": self._call(layer.code.gate_up, "h", "gate_up"),
                "down": self._call(layer.code.down, "act", "delta"),
            }
            for layer in talker.layers
        ]

    def _call(self, weight: Weight, x: str, out: str) -> tuple[int, Arguments]:
        """(blocks, argument) of a launch."""
        features, width = weight.shape
        parts = len(self._scratch[out]) if out == "delta" else 1
        argument = ProductArgs.of(
            weights=weight.data,
            x=self._scratch[x],
            out=self._scratch[out],
            features=features,
            width=width,
            parts=parts,
        )
        return min(self._blocks, features // (16 * self._shape.tiles) * parts), argument

    def _launch(self, index: int, name: str) -> None:
        blocks, argument = self._calls[index][name]
        launch(self._function, blocks, THREADS, argument, shared=self._shape.shared)

    def qkv(self, index: int) -> None:
        self._launch(index, "qkv")

    def out(self, index: int) -> None:
        self._launch(index, "out")

    def gate_up(self, index: int) -> None:
        self._launch(index, "gate_up")

    def down(self, index: int) -> None:
        self._launch(index, "down")
