"""Attention, MLP and norm of a decode step, and the buffers they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..device.buffers import Buffers, buffer
from .config import ModelConfig
from .ops.attention import attend, attend_filled
from .ops.linear import add_linear, linear
from .ops.norm import rms_norm
from .ops.swiglu import swiglu
from .weight import SCRATCH, Weight


@dataclass(frozen=True)
class Expert:
    """Weights that differ between text and code positions in v2: two norms and the MLP."""

    attn_norm: torch.Tensor  # [H]
    mlp_norm: torch.Tensor  # [H]
    gate_up: Weight  # [2 * I, H]
    down: Weight  # [H, I]


@dataclass(frozen=True)
class Layer:
    """Weights of one layer. `text` and `code` are the same object if the family has one expert."""

    qkv: Weight  # [(heads + 2 * kv_heads) * D, H]
    out: Weight  # [H, heads * D]
    qk_norm: torch.Tensor | None  # [heads + kv_heads, D]
    text: Expert
    code: Expert


def layer_weights(
    tensors: dict[str, torch.Tensor], index: int
) -> tuple[Callable[[str], torch.Tensor], Callable[[str], Weight]]:
    """Return functions that give a layer's tensor, and its matrix, by canonical name."""

    def get(name: str) -> torch.Tensor:
        return tensors[f"layers.{index}.{name}"]

    return get, lambda name: Weight(get(name), tensors.get(SCRATCH))


@dataclass(eq=False)
class Work(Buffers):
    """Buffers of a step in torch ops, from the embedding to the logits. All layers share them."""

    x: torch.Tensor = buffer("B", "H", dtype=None)  # residual stream
    h: torch.Tensor = buffer("B", "H", dtype=None)  # normed
    scale: torch.Tensor = buffer("B", 1, dtype=torch.float32)  # of the norm
    qkv: torch.Tensor = buffer("B", "all_heads", "D", dtype=None)  # projected
    qk_scale: torch.Tensor = buffer("B", "qk_heads", 1, dtype=torch.float32)  # of the norm per head
    qk: torch.Tensor = buffer("B", "qk_heads", "D", dtype=None)  # rotated
    q: torch.Tensor = buffer("B", "heads", "D", dtype=None)  # with B = 1, q, k and v are views of qk and qkv
    k: torch.Tensor = buffer("B", "kv_heads", "D", dtype=None)
    v: torch.Tensor = buffer("B", "kv_heads", "D", dtype=None)
    scores: torch.Tensor = buffer("BG", "group", "S", dtype=None)  # attention scores, BG = B * kv_heads
    attended: torch.Tensor = buffer("B", "heads", "D", dtype=None)
    gate_up: torch.Tensor = buffer("B", 2, "I", dtype=None)
    act: torch.Tensor = buffer("B", "I", dtype=None)
    cos: torch.Tensor = buffer("B", "D", dtype=None)
    sin: torch.Tensor = buffer("B", "D", dtype=None)
    eps: torch.Tensor = buffer(1, dtype=torch.float32)  # of the norms
    embed_index: torch.Tensor = buffer("B", "K")  # rows of the code embedding
    embedded: torch.Tensor = buffer("BK", "H", dtype=None)  # BK = B * K
    head: torch.Tensor = buffer("B", "KV", dtype=None)  # KV = K * V
    logits: torch.Tensor = buffer("B", "K", "V", dtype=torch.float32, lasts=True)
    stalled: torch.Tensor = buffer(1, dtype=torch.int32)  # nonzero: a kernel's blocks timed out waiting for each other

    def __post_init__(self) -> None:
        sizes = self.sizes
        heads = sizes["heads"] + sizes["kv_heads"]
        self.sizes = sizes | {
            "qk_heads": heads,
            "all_heads": heads + sizes["kv_heads"],
            "group": sizes["heads"] // sizes["kv_heads"],
            "BG": sizes["B"] * sizes["kv_heads"],
            "BK": sizes["B"] * sizes["K"],
            "KV": sizes["K"] * sizes["V"],
        }
        super().__post_init__()
        # Views are made once, for on a CPU each costs as much as a small op.
        self.raw, self.raw_v = self.qkv[:, :heads], self.qkv[:, heads:]  # queries with keys, and values, as projected
        self.raw_low, self.raw_high = self.raw.chunk(2, -1)
        self.qk_low, self.qk_high = self.qk.chunk(2, -1)
        self.heads_cos, heads_sin = self.cos.unsqueeze(1), self.sin.unsqueeze(1)
        self.low_sin, self.high_sin = heads_sin.chunk(2, -1)
        self.rotated_q, self.rotated_k = self.qk[:, : sizes["heads"]], self.qk[:, sizes["heads"] :]
        self.gate, self.up = self.gate_up.unbind(1)
        self.flat_qkv, self.flat_gate_up = self.qkv.flatten(1), self.gate_up.flatten(1)
        self.flat_attended = self.attended.flatten(1)
        if sizes["B"] == 1:
            self.q, self.k, self.v = self.rotated_q, self.rotated_k, self.raw_v


class Cache(Protocol):
    """KV cache as a decode pass sees it, see decode/kv_cache.py."""

    keys: torch.Tensor
    values: torch.Tensor
    position: torch.Tensor
    slot: torch.Tensor
    empty: torch.Tensor
    filled: list[int] | None

    def mask_empty(self) -> None: ...

    def keep_queries(self, layer: int, queries: torch.Tensor) -> None: ...


class State(Protocol):
    """Decode state as a decode pass sees it, see decode/state.py."""

    work: Work

    @property
    def cache(self) -> Cache: ...


def project_qkv(layer: Layer, expert: Expert, work: Work) -> None:
    """Norm work.x, project it, norm per head and rotate -> work.rotated_q, work.rotated_k, work.raw_v."""
    rms_norm(work.x, expert.attn_norm, work.eps, work.h, work.scale)
    linear(work.h, layer.qkv, work.flat_qkv)
    if layer.qk_norm is not None:
        rms_norm(work.raw, layer.qk_norm, work.eps, work.raw, work.qk_scale)
    rotate(work)


def rotate(work: Work) -> None:
    """Rotate queries and keys by position, half-split (neox): work.qk = raw * cos + rotate_half(raw) * sin."""
    torch.mul(work.raw, work.heads_cos, out=work.qk)
    work.qk_low.addcmul_(work.raw_high, work.low_sin, value=-1.0)
    work.qk_high.addcmul_(work.raw_low, work.high_sin)


def project_out(layer: Layer, work: Work) -> None:
    """Add the attention's output projection to the residual stream."""
    add_linear(work.flat_attended, layer.out, work.x)


def mlp(expert: Expert, work: Work) -> None:
    """Add the gated MLP to the residual stream."""
    rms_norm(work.x, expert.mlp_norm, work.eps, work.h, work.scale)
    linear(work.h, expert.gate_up, work.flat_gate_up)
    swiglu(work.gate, work.up, work.act)
    add_linear(work.act, expert.down, work.x)


def attend_cache(config: ModelConfig, work: Work, cache: Cache, index: int) -> None:
    """Write keys and values, one position per row, into layer `index` of the cache, then attend to filled slots."""
    dim, keys, values = config.head_dim, cache.keys[index], cache.values[index]
    if cache.filled is not None:
        parts = work.rotated_q, work.rotated_k, work.raw_v
        attend_filled(*parts, keys, values, cache.filled, dim**-0.5, work.attended)
        return
    if len(work.qk) > 1:
        work.q.copy_(work.rotated_q)
        work.k.copy_(work.rotated_k)
        work.v.copy_(work.raw_v)
    keys.view(-1, dim).index_copy_(0, cache.slot.view(-1), work.k.view(-1, dim))
    values.view(-1, dim).index_copy_(0, cache.slot.view(-1), work.v.view(-1, dim))
    grouped = (-1, config.heads // config.kv_heads, dim)
    q, out = work.q.view(grouped), work.attended.view(grouped)
    keys, values = keys.view(-1, *keys.shape[2:]), values.view(-1, *values.shape[2:])
    attend(q, keys, values, cache.empty, dim**-0.5, work.scores, out)
