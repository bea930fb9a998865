"""The talker's decode pass of 2 to 64 rows: torch's matrix products, CUDA kernels between them (batch.cu).

Its torch twin is Talker.decode. The products always have 64 rows, so that one algorithm serves every batch size and a
row's result depends on neither the number nor the contents of the others; they take their time for the weights anyway.
Those with few outputs are split over their inputs, since one of them alone leaves multiprocessors idle.
"""

from __future__ import annotations

import ctypes
import pathlib

import torch

from ...cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source
from ...talker.ops.linear import linear, linear_in_shares
from .single import unfit

MOST_ROWS = 64
SHARES = 4  # products that one with few outputs is split into
PART, MOST_PARTS = 512, 32  # positions of a row that one block attends to, at least; parts that a row may come to
CREWS = 3  # attending blocks on a multiprocessor at once
_CREW_THREADS = 128
_GATE_THREADS = 256
_ATTEND = "qkv qk_norm cos sin keys values position attended sums marks arrived"


class _AddNormArgs(ctypes.Structure):
    """As `AddNormArgs` in batch.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in "x_in delta weight x h".split()]


class _SwigluArgs(ctypes.Structure):
    """As `SwigluArgs` in batch.cu."""

    _fields_ = [("gate_up", ctypes.c_void_p), ("act", ctypes.c_void_p), ("rows", ctypes.c_int)]


class _AttendArgs(ctypes.Structure):
    """As `AttendArgs` in batch.cu."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in _ATTEND.split()),
        *((name, ctypes.c_int) for name in ("rows", "slots", "most_parts")),
    ]


def source() -> str:
    return read_source(pathlib.Path(__file__).with_name("batch.cu"))


def defines(config) -> tuple[str, ...]:
    """The widths as compiler options."""
    values = {
        "HIDDEN": config.hidden,
        "HEADS": config.heads,
        "KV_HEADS": config.kv_heads,
        "INTER": config.intermediate,
        "EPS": f"{config.norm_eps}f",
        "HAS_QK_NORM": int(not config.is_v2),
        "PADDED": MOST_ROWS,
        "SHARES": SHARES,
        "PART": PART,
        "MOST_PARTS": MOST_PARTS,
        "CREWS": CREWS,
    }
    return tuple(f"-D{name}={value}" for name, value in values.items())


def most_parts(context: int) -> int:
    """The most parts that a row of that many slots comes to; see part_size in batch_attention.cuh."""
    return min(MOST_PARTS, -(-context // PART))


class BatchKernel:
    """state.work.x -> cache and state.logits, 2 to 64 rows. Raises KernelUnavailable where the kernels cannot be had.

    Allocates its scratch when made; `run` allocates nothing and may be captured.
    """

    name = "CUDA kernels for a batch"

    def __init__(self, talker, state):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason is None and not 2 <= state.batch <= MOST_ROWS:
            reason = f"it serves 2 to {MOST_ROWS} rows"
        if reason:
            raise KernelUnavailable(reason)
        major, minor = torch.cuda.get_device_capability(device)
        self._module = Module(compile_cubin(source(), f"{major}{minor}", defines(config)))
        self._kernels = {name: self._module.function(name) for name in ("add_norm", "attend", "swiglu")}
        self._talker, self._state, self._rows = talker, state, state.batch
        self._norm_threads = config.hidden // 8
        self._gate_blocks = -(-state.batch * config.intermediate // (8 * _GATE_THREADS))
        self._most_parts = most_parts(state.context)
        self._attend_blocks = torch.cuda.get_device_properties(device).multi_processor_count * CREWS
        self.scratch = self._make_scratch(config, device)
        self._make_arguments()

    def _make_scratch(self, config, device) -> dict[str, torch.Tensor]:
        rows, dim, heads, kv_heads = self._rows, config.head_dim, config.heads, config.kv_heads
        widths = {
            "h": config.hidden,
            "qkv": (heads + 2 * kv_heads) * dim,
            "attended": heads * dim,
            "gate_up": 2 * config.intermediate,
            "act": config.intermediate,
            "head": config.codebooks * config.code_vocab,
        }
        new = {name: (MOST_ROWS, width) for name, width in widths.items()}
        new = {name: torch.zeros(shape, device=device, dtype=torch.bfloat16) for name, shape in new.items()}
        new["delta"] = torch.zeros(SHARES, MOST_ROWS, config.hidden, device=device, dtype=torch.bfloat16)
        new["x"] = torch.zeros(rows, config.hidden, device=device)
        new["sums"] = torch.zeros(rows * heads * self._most_parts * dim, device=device)
        new["marks"] = torch.zeros(rows * heads * MOST_PARTS * 2, device=device)
        new["arrived"] = torch.zeros(rows * kv_heads, device=device, dtype=torch.int32)
        return new

    def _make_arguments(self):
        """What each layer's kernels are launched with, in the order of their launches."""
        s, layers, state = self.scratch, self._talker.layers, self._state
        self._gate = _SwigluArgs(gate_up=s["gate_up"].data_ptr(), act=s["act"].data_ptr(), rows=self._rows)
        self._norms = [self._norm(layers[0].code.attn_norm, state.work.x)]
        self._attends = []
        for index, layer in enumerate(layers):
            self._attends.append(self._attend(layer, state.keys[index], state.values[index]))
            following = layers[index + 1].code.attn_norm if index + 1 < len(layers) else self._talker.norm
            self._norms += [self._norm(layer.code.mlp_norm), self._norm(following)]

    def _norm(self, weight, x_in=None) -> _AddNormArgs:
        s = {name: self.scratch[name].data_ptr() for name in ("delta", "x", "h")}
        return _AddNormArgs(**s, x_in=None if x_in is None else x_in.data_ptr(), weight=weight.data_ptr())

    def _attend(self, layer, keys, values) -> _AttendArgs:
        s = {name: self.scratch[name].data_ptr() for name in ("qkv", "attended", "sums", "marks", "arrived")}
        return _AttendArgs(
            **s,
            qk_norm=None if layer.qk_norm is None else layer.qk_norm.data_ptr(),
            cos=self._talker.cos.data_ptr(),
            sin=self._talker.sin.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            position=self._state.position.data_ptr(),
            rows=self._rows,
            slots=self._state.context,
            most_parts=self._most_parts,
        )

    def run(self):
        s, talker, launch_norm = self.scratch, self._talker, self._launch_norm
        launch_norm(self._norms[0])
        for index, layer in enumerate(talker.layers):
            linear(s["h"], layer.qkv, s["qkv"])
            launch(self._kernels["attend"], self._attend_blocks, _CREW_THREADS, self._attends[index])
            linear_in_shares(s["attended"], layer.out, s["delta"])
            launch_norm(self._norms[2 * index + 1])
            linear(s["h"], layer.code.gate_up, s["gate_up"])
            launch(self._kernels["swiglu"], self._gate_blocks, _GATE_THREADS, self._gate)
            linear_in_shares(s["act"], layer.code.down, s["delta"])
            launch_norm(self._norms[2 * index + 2])
        linear(s["h"], talker.head_codes, s["head"])
        self._state.logits.view(self._rows, -1).copy_(s["head"][: self._rows])

    def _launch_norm(self, norm: _AddNormArgs):
        launch(self._kernels["add_norm"], self._rows, self._norm_threads, norm)

    def close(self):
        """Unloads the code and lets go of the state, which holds this object."""
        self._module.close()
        self._talker = self._state = None
