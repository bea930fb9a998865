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
from .ops.rope import rotate
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
        if sizes["B"] == 1:
            self.q, self.k, self.v = self.parts()

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v as views of qk and qkv."""
        heads = self.sizes["heads"]
        return self.qk[:, :heads], self.qk[:, heads:], self.qkv[:, self.sizes["qk_heads"] :]


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


def project_qkv(config: ModelConfig, layer: Layer, expert: Expert, work: Work) -> None:
    """Norm work.x, project it, norm per head and rotate -> work.q, work.k, work.v."""
    total = config.heads + config.kv_heads
    rms_norm(work.x, expert.attn_norm, work.eps, work.h, work.scale)
    linear(work.h, layer.qkv, work.qkv.flatten(1))
    raw = work.qkv[:, :total]
    if layer.qk_norm is not None:
        rms_norm(raw, layer.qk_norm, work.eps, raw, work.qk_scale)
    rotate(raw, work.cos, work.sin, work.qk)
    if len(raw) > 1:
        for whole, part in zip((work.q, work.k, work.v), work.parts(), strict=True):
            whole.copy_(part)


def project_out(layer: Layer, work: Work) -> None:
    """Add the attention's output projection to the residual stream."""
    add_linear(work.attended.flatten(1), layer.out, work.x)


def mlp(expert: Expert, work: Work) -> None:
    """Add the gated MLP to the residual stream."""
    rms_norm(work.x, expert.mlp_norm, work.eps, work.h, work.scale)
    linear(work.h, expert.gate_up, work.gate_up.flatten(1))
    swiglu(work.gate_up.flatten(1), work.act)
    add_linear(work.act, expert.down, work.x)


def attend_cache(config: ModelConfig, work: Work, cache: Cache, index: int) -> None:
    """Write work.k and work.v, one position per row, into layer `index` of the cache, then attend to filled slots."""
    dim, keys, values = config.head_dim, cache.keys[index], cache.values[index]
    keys.view(-1, dim).index_copy_(0, cache.slot.view(-1), work.k.view(-1, dim))
    values.view(-1, dim).index_copy_(0, cache.slot.view(-1), work.v.view(-1, dim))
    grouped = (-1, config.heads // config.kv_heads, dim)
    q, out = work.q.view(grouped), work.attended.view(grouped)
    keys, values = keys.view(-1, *keys.shape[2:]), values.view(-1, *values.shape[2:])
    if cache.filled is None:
        attend(q, keys, values, cache.empty, dim**-0.5, work.scores, out)
    else:
        attend_filled(q, keys, values, cache.filled, dim**-0.5, work.scores, out)
