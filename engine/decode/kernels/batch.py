"""The talker's decode pass of 2 to 64 rows: torch's matrix products, CUDA kernels between them (batch.cu).

Its torch twin is Talker.decode. The products are always padded to 64 rows, so that one algorithm serves every batch
size and a row's result depends on neither the number nor the contents of the others; their time goes into the weights
anyway. Those with few outputs are split over their inputs (split-K), since one alone leaves SMs idle.
"""

from __future__ import annotations

import ctypes
import pathlib

import torch

from ...cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source
from ...talker import FAMILIES
from ...talker.ops.linear import linear, split_linear
from .single import unfit

MAX_ROWS = 64
SPLIT_K = 4  # products that one with few outputs is split into
MIN_SPLIT, MAX_SPLITS = 512, 32  # positions of a KV split, at least; splits of a row
BLOCKS_PER_SM = 3  # of `attend`
_ATTEND_THREADS = 128
_SWIGLU_THREADS = 256
_ATTEND = "qkv qk_norm cos sin keys values position attended partial_o partial_ml arrived"


class _AddNormArgs(ctypes.Structure):
    """`AddNormArgs` of batch.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in "x_in delta weight x h".split()]


class _SwigluArgs(ctypes.Structure):
    """`SwigluArgs` of batch.cu."""

    _fields_ = [("gate_up", ctypes.c_void_p), ("act", ctypes.c_void_p), ("rows", ctypes.c_int)]


class _AttendArgs(ctypes.Structure):
    """`AttendArgs` of batch.cu."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in _ATTEND.split()),
        *((name, ctypes.c_int) for name in ("rows", "max_seq_len", "max_splits")),
    ]


def source() -> str:
    return read_source(pathlib.Path(__file__).with_name("batch.cu"))


def defines(config) -> tuple[str, ...]:
    """Compiler options."""
    values = {
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "INTER": config.intermediate,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(FAMILIES[config.family].qk_norm),
        "PADDED_ROWS": MAX_ROWS,
        "SPLIT_K": SPLIT_K,
        "MIN_SPLIT": MIN_SPLIT,
        "MAX_SPLITS": MAX_SPLITS,
        "BLOCKS_PER_SM": BLOCKS_PER_SM,
    }
    return tuple(f"-D{name}={value}" for name, value in values.items())


def max_splits(max_seq_len: int) -> int:
    """The most splits of a row of that many slots; see split_size in batch_attention.cuh."""
    return min(MAX_SPLITS, -(-max_seq_len // MIN_SPLIT))


class BatchKernel:
    """state.work.x -> cache and state.logits, 2 to 64 rows. Raises KernelUnavailable if they cannot be compiled.

    Allocates its scratch when constructed; `run` allocates nothing and may be captured.
    """

    name = "CUDA kernels for a batch"

    def __init__(self, talker, state):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason is None and not 2 <= state.batch <= MAX_ROWS:
            reason = f"it serves 2 to {MAX_ROWS} rows"
        if reason:
            raise KernelUnavailable(reason)
        self.scratch = self.make_scratch(config, state.batch, state.max_seq_len, device)
        major, minor = torch.cuda.get_device_capability(device)
        self._module = Module(compile_cubin(source(), f"{major}{minor}", defines(config)))
        self._kernels = {name: self._module.function(name) for name in ("add_norm", "attend", "swiglu")}
        self._talker, self._state, self._rows = talker, state, state.batch
        self._norm_threads = config.hidden // 8
        self._swiglu_blocks = -(-state.batch * config.intermediate // (8 * _SWIGLU_THREADS))
        self._max_splits = max_splits(state.max_seq_len)
        self._attend_blocks = torch.cuda.get_device_properties(device).multi_processor_count * BLOCKS_PER_SM
        self._make_arguments()

    @staticmethod
    def make_scratch(config, batch: int, max_seq_len: int, device) -> dict[str, torch.Tensor]:
        """What the kernels and the products between them hand to each other."""
        dim, heads, kv_heads, splits = config.head_dim, config.heads, config.kv_heads, max_splits(max_seq_len)
        widths = {
            "h": config.hidden,
            "qkv": (heads + 2 * kv_heads) * dim,
            "attended": heads * dim,
            "gate_up": 2 * config.intermediate,
            "act": config.intermediate,
            "head": config.codebooks * config.code_vocab,
        }
        new = {name: (MAX_ROWS, width) for name, width in widths.items()}
        new = {name: torch.zeros(shape, device=device, dtype=torch.bfloat16) for name, shape in new.items()}
        new["delta"] = torch.zeros(SPLIT_K, MAX_ROWS, config.hidden, device=device, dtype=torch.bfloat16)
        new["x"] = torch.zeros(batch, config.hidden, device=device)
        new["partial_o"] = torch.zeros(batch * heads * splits * dim, device=device)
        new["partial_ml"] = torch.zeros(batch * heads * MAX_SPLITS * 2, device=device)
        new["arrived"] = torch.zeros(batch * kv_heads, device=device, dtype=torch.int32)
        return new

    def _make_arguments(self):
        """The arguments of every launch, in order."""
        s, layers, state = self.scratch, self._talker.layers, self._state
        self._swiglu = _SwigluArgs(gate_up=s["gate_up"].data_ptr(), act=s["act"].data_ptr(), rows=self._rows)
        self._norms = [self._norm(layers[0].code.attn_norm, state.work.x)]
        self._attends = []
        for index, layer in enumerate(layers):
            self._attends.append(self._attend(layer, state.cache.keys[index], state.cache.values[index]))
            following = layers[index + 1].code.attn_norm if index + 1 < len(layers) else self._talker.norm
            self._norms += [self._norm(layer.code.mlp_norm), self._norm(following)]

    def _norm(self, weight, x_in=None) -> _AddNormArgs:
        s = {name: self.scratch[name].data_ptr() for name in ("delta", "x", "h")}
        return _AddNormArgs(**s, x_in=None if x_in is None else x_in.data_ptr(), weight=weight.data_ptr())

    def _attend(self, layer, keys, values) -> _AttendArgs:
        s = {name: self.scratch[name].data_ptr() for name in ("qkv", "attended", "partial_o", "partial_ml", "arrived")}
        return _AttendArgs(
            **s,
            qk_norm=None if layer.qk_norm is None else layer.qk_norm.data_ptr(),
            cos=self._talker.cos.data_ptr(),
            sin=self._talker.sin.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            position=self._state.cache.position.data_ptr(),
            rows=self._rows,
            max_seq_len=self._state.max_seq_len,
            max_splits=self._max_splits,
        )

    def run(self):
        s, talker, launch_norm = self.scratch, self._talker, self._launch_norm
        launch_norm(self._norms[0])
        for index, layer in enumerate(talker.layers):
            linear(s["h"], layer.qkv, s["qkv"])
            launch(self._kernels["attend"], self._attend_blocks, _ATTEND_THREADS, self._attends[index])
            split_linear(s["attended"], layer.out, s["delta"])
            launch_norm(self._norms[2 * index + 1])
            linear(s["h"], layer.code.gate_up, s["gate_up"])
            launch(self._kernels["swiglu"], self._swiglu_blocks, _SWIGLU_THREADS, self._swiglu)
            split_linear(s["act"], layer.code.down, s["delta"])
            launch_norm(self._norms[2 * index + 2])
        linear(s["h"], talker.head_codes, s["head"])
        self._state.logits.view(self._rows, -1).copy_(s["head"][: self._rows])

    def _launch_norm(self, norm: _AddNormArgs):
        launch(self._kernels["add_norm"], self._rows, self._norm_threads, norm)

    def tensors(self) -> list[torch.Tensor]:
        """What they have on the device of their own."""
        return list(self.scratch.values())

    def close(self):
        """Unloads the code and drops the state."""
        self._module.close()
        self._talker = self._state = None
