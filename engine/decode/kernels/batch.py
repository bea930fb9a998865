"""The talker's decode pass for a batch: matrix products (batch_product.py, batch_dense.py), and kernels between.

Torch twin: Talker.decode. Torch's products always have 64 rows, and ours add up in one order for any number. So a row's
result depends neither on the number nor on the contents of other rows, and a step may be of the first rows only.
Padding is nearly free, because reading the weights takes the time. Products with few outputs are split over their
inputs (split-K) to keep all SMs busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib

import torch

from ...cuda.kernel import Arguments, CudaKernel, Limits, options, structure
from ...cuda.nvrtc import KernelUnavailable, launch
from ...talker import Talker
from ...talker.config import ModelConfig
from ...talker.layers import Layer
from ..state import DecodeState
from .batch_dense import MAX_ROWS, DenseShape, dense_shape
from .batch_product import PARTS, ROW_BLOCK, ProductShape, Scratch, padded, quantised_shape
from .single import BF16, FP32, INT32, INT64, shape_of, unfit

SOURCE = pathlib.Path(__file__).with_name("batch.cu")
MIN_SPLIT, MAX_SPLITS = 512, 32  # minimum positions per KV split; maximum splits per row
_ATTEND_THREADS = 128
SWIGLU_THREADS = 256
_FEWER = (8, 16, 32, 64)  # wgmma's columns, and rows of torch's products

AddNormArgs = structure("AddNormArgs", x_in=BF16, delta=BF16, weight=BF16, x=FP32, h=BF16)
SwigluArgs = structure("SwigluArgs", gate_up=BF16, act=BF16, rows=ctypes.c_int)
AttendArgs = structure(
    "AttendArgs",
    qkv=BF16,
    qk_norm=BF16,
    cos=BF16,
    sin=BF16,
    keys=BF16,
    values=BF16,
    position=INT64,
    done=torch.bool,
    attended=BF16,
    partial_o=FP32,
    partial_ml=FP32,
    arrived=INT32,
    queries=BF16,
    query_heads=ctypes.c_longlong,
    rows=ctypes.c_int,
    max_seq_len=ctypes.c_int,
    max_splits=ctypes.c_int,
)


def defines(config: ModelConfig, shape: ProductShape, rows: int) -> tuple[str, ...]:
    """Return the compiler options."""
    values = {
        **shape_of(config),
        "PADDED_ROWS": padded(rows),
        "QKV_PARTS": shape.parts["qkv"],
        "DELTA_PARTS": shape.parts["down"],
        "MIN_SPLIT": MIN_SPLIT,
        "MAX_SPLITS": MAX_SPLITS,
        "BLOCKS_PER_SM": shape.attend_blocks,
        "NORM_THREADS": norm_threads(config),
        "SWIGLU_THREADS": SWIGLU_THREADS,
        "ATTEND_THREADS": _ATTEND_THREADS,
    }
    return options(values | shape.defines(), AddNormArgs, SwigluArgs, AttendArgs, shape.arguments)


def product_shape(config: ModelConfig, weights: str, rows: int, limits: Limits) -> ProductShape:
    """Return the shape of a layer's products in a format."""
    heads = config.heads * config.head_dim
    sizes = {
        "qkv": (heads + 2 * config.kv_heads * config.head_dim, config.hidden),
        "out": (config.hidden, heads),
        "gate_up": (2 * config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
    }
    dense = dense_shape(weights, rows, limits, sizes)
    if dense or weights == "bf16":
        return dense or ProductShape()
    return quantised_shape(weights, rows, limits, sizes)


def fewer_rows(batch: int) -> list[int]:
    """Return the numbers of rows below `batch` whose step costs less if the products are ours."""
    return [rows for rows in _FEWER if rows < batch]


def most_rows(talker: Talker, kernels: str) -> int:
    """Return the most rows of a batch on the talker's device. kernels: as in EngineConfig."""
    if kernels != "torch" and unfit(talker.config, talker.device, talker.dtype) is None:
        with contextlib.suppress(KernelUnavailable):
            return BatchKernel.most_rows(talker)
    return ROW_BLOCK


def norm_threads(config: ModelConfig) -> int:
    """Return the threads per block of `add_norm`, each with eight values of a row."""
    return config.hidden // 8


def max_splits(max_seq_len: int) -> int:
    """Return the maximum splits of a row with that many slots; see split_size in batch_attention.cuh."""
    return min(MAX_SPLITS, -(-max_seq_len // MIN_SPLIT))


class BatchKernel(CudaKernel):
    """state.work.x -> cache and state.logits, for 2 to `most_rows` rows. Raises KernelUnavailable.

    Allocates its scratch at construction; `run` allocates nothing and may be captured.

    rows: the first rows of the state that it computes, by default all. The others must be done.
    scratch: of a kernel of all rows, to compute in.
    """

    name = "CUDA kernels for a batch"

    def __init__(self, talker: Talker, state: DecodeState, rows: int = 0, scratch: Scratch | None = None):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason is None and not 2 <= state.batch <= self.most_rows(talker):
            reason = f"it supports 2 to {self.most_rows(talker)} rows"
        if reason:
            raise KernelUnavailable(reason)
        limits = Limits.of(device)
        self.scratch = scratch or self.make_scratch(config, state.batch, state.max_seq_len, device)
        self._talker, self._state, self._rows = talker, state, rows or state.batch
        self._norm_threads = norm_threads(config)
        self._swiglu_blocks = -(-self._rows * config.intermediate // (8 * SWIGLU_THREADS))
        self._make_arguments()
        shape = product_shape(config, talker.layers[0].qkv.format, self._rows, limits)
        self._attend_blocks = limits.multiprocessors * shape.attend_blocks
        super().__init__(SOURCE, shape.target or limits.capability, defines(config, shape, state.batch))
        self.fewer = fewer_rows(state.batch) if shape.is_ours else []  # rows of further kernels
        self._kernels = {name: self._module.function(name) for name in ("add_norm", "attend", "swiglu")}
        self._gated = shape.gates  # by gate_up's product
        self._products = shape.products(talker, self.scratch, self._module, limits)
        self._overlapping = limits.overlapping and shape.is_ours  # torch's products wait for all earlier work
        with self._first_launch():
            state.work.x.zero_()
            self._add_norm(self._norms[0])
            if shape.is_ours:
                for name in PARTS:
                    self._products.run(name, 0)
            self._attend(self._attends[0])
            self._swiglu()

    @staticmethod
    def most_rows(talker: Talker) -> int:
        """Return the most rows for a talker's weights on its device."""
        return product_shape(talker.config, talker.layers[0].qkv.format, MAX_ROWS, Limits.of(talker.device)).most_rows

    @staticmethod
    def make_scratch(config: ModelConfig, batch: int, max_seq_len: int, device: torch.device) -> Scratch:
        """Allocate the buffers between the kernels and the matrix products."""
        dim, heads, kv_heads, splits = config.head_dim, config.heads, config.kv_heads, max_splits(max_seq_len)
        widths = {
            "h": config.hidden,
            "attended": heads * dim,
            "gate_up": 2 * config.intermediate,
            "act": config.intermediate,
            "head": config.codebooks * config.code_vocab,
        }
        sizes: dict[str, tuple[int, ...]] = {name: (padded(batch), width) for name, width in widths.items()}
        parts = DenseShape.parts  # the most of any kind
        sizes["qkv"] = parts["qkv"], padded(batch), (heads + 2 * kv_heads) * dim
        sizes["delta"] = parts["down"], padded(batch), config.hidden
        new = {name: torch.zeros(size, device=device, dtype=torch.bfloat16) for name, size in sizes.items()}
        new["x"] = torch.zeros(batch, config.hidden, device=device)
        new["partial_o"] = torch.zeros(batch * heads * splits * dim, device=device)
        new["partial_ml"] = torch.zeros(batch * heads * MAX_SPLITS * 2, device=device)
        new["arrived"] = torch.zeros(batch * kv_heads, device=device, dtype=torch.int32)
        return new

    def _make_arguments(self):
        """Make the arguments of every launch, in order."""
        s, layers = self.scratch, self._talker.layers
        self._swiglu_args = SwigluArgs.of(gate_up=s["gate_up"], act=s["act"], rows=self._rows)
        self._norms = [self._norm_args(layers[0].code.attn_norm, self._state.work.x)]
        self._attends = []
        for index, layer in enumerate(layers):
            self._attends.append(self._attend_args(layer, index))
            following = layers[index + 1].code.attn_norm if index + 1 < len(layers) else self._talker.norm
            self._norms += [self._norm_args(layer.code.mlp_norm), self._norm_args(following)]

    def _norm_args(self, weight: torch.Tensor, x_in: torch.Tensor | None = None) -> Arguments:
        s = {name: self.scratch[name] for name in ("delta", "x", "h")}
        return AddNormArgs.of(**s, x_in=x_in, weight=weight)

    def _attend_args(self, layer: Layer, index: int) -> Arguments:
        cache, (queries, query_heads) = self._state.cache, self._state.cache.layer_queries(index)
        names = ("qkv", "attended", "partial_o", "partial_ml", "arrived")
        return AttendArgs.of(
            **{name: self.scratch[name] for name in names},
            qk_norm=layer.qk_norm,
            cos=self._talker.cos,
            sin=self._talker.sin,
            keys=cache.keys[index],
            values=cache.values[index],
            queries=queries,
            query_heads=query_heads,
            position=cache.position,
            done=self._state.delay.done,
            rows=self._state.batch,
            max_seq_len=self._state.max_seq_len,
            max_splits=max_splits(self._state.max_seq_len),
        )

    def run(self) -> None:
        products = self._products
        self._add_norm(self._norms[0], overlapping=False)  # after kernels that are not ours
        for index in range(len(self._attends)):
            products.run("qkv", index)
            self._attend(self._attends[index])
            products.run("out", index)
            self._add_norm(self._norms[2 * index + 1])
            products.run("gate_up", index)
            self._swiglu()
            products.run("down", index)
            self._add_norm(self._norms[2 * index + 2])
        products.head(self._rows)
        self._state.logits.flatten(1)[: self._rows].copy_(self.scratch["head"][: self._rows])

    def _add_norm(self, argument: Arguments, overlapping: bool = True):
        self._launch("add_norm", self._rows, self._norm_threads, argument, overlapping)

    def _attend(self, argument: Arguments):
        self._launch("attend", self._attend_blocks, _ATTEND_THREADS, argument)

    def _swiglu(self):
        if not self._gated:
            self._launch("swiglu", self._swiglu_blocks, SWIGLU_THREADS, self._swiglu_args)

    def _launch(self, name: str, grid: int, block: int, argument: Arguments, overlapping: bool = True) -> None:
        launch(self._kernels[name], grid, block, argument, overlapping=overlapping and self._overlapping)
