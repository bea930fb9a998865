"""One attention, one MLP, one norm, and the buffers they write. Knows no checkpoint, no sampling, no prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .config import ModelConfig
from .ops.attention import attend
from .ops.linear import add_linear, linear
from .ops.norm import rms_norm
from .ops.rope import rotate
from .ops.swiglu import swiglu


@dataclass(frozen=True)
class Expert:
    """What differs between text and code positions in v2: two norms and the MLP."""

    attn_norm: torch.Tensor  # [H]
    mlp_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2 * I, H]
    down: torch.Tensor  # [H, I]


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; `text` and `code` are the same object where the family has one expert."""

    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * D, H]
    out: torch.Tensor  # [H, heads * D]
    qk_norm: torch.Tensor | None  # [heads + kv_heads, D]
    text: Expert
    code: Expert


@dataclass
class Work:
    """Scratch for `rows` positions going through a layer, used by every layer in turn."""

    x: torch.Tensor  # [R, H] residual stream
    h: torch.Tensor  # [R, H]
    scale: torch.Tensor  # [R, 1] fp32
    qkv: torch.Tensor  # [R, (heads + 2 * kv_heads) * D]
    qk_scale: torch.Tensor  # [R, heads + kv_heads, 1] fp32
    qk: torch.Tensor  # [R, heads + kv_heads, D] after rotation
    q: torch.Tensor  # [R, heads, D]; of a single row these three are views of qk and qkv
    k: torch.Tensor  # [R, kv_heads, D]
    v: torch.Tensor  # [R, kv_heads, D]
    attended: torch.Tensor  # [R, heads, D]
    gate_up: torch.Tensor  # [R, 2 * I]
    act: torch.Tensor  # [R, I]
    cos: torch.Tensor  # [R, D]
    sin: torch.Tensor  # [R, D]
    eps: torch.Tensor  # [1] fp32, the norms' constant

    @staticmethod
    def make(config: ModelConfig, rows: int, device, dtype) -> Work:
        """Scratch for `rows` positions, uninitialised but for the constant."""
        hidden, dim, inner = config.hidden, config.head_dim, config.intermediate
        heads, kv_heads = config.heads, config.kv_heads
        shapes = {
            "x": (hidden,),
            "h": (hidden,),
            "scale": (1,),
            "qkv": ((heads + 2 * kv_heads) * dim,),
            "qk_scale": (heads + kv_heads, 1),
            "qk": (heads + kv_heads, dim),
            "attended": (heads, dim),
            "gate_up": (2 * inner,),
            "act": (inner,),
            "cos": (dim,),
            "sin": (dim,),
        }
        in_fp32 = {"scale", "qk_scale"}
        made = {
            name: torch.empty((rows, *shape), device=device, dtype=torch.float32 if name in in_fp32 else dtype)
            for name, shape in shapes.items()
        }
        for name, part in _parts(config, made["qk"], made["qkv"]).items():
            made[name] = part if rows == 1 else torch.empty(part.shape, device=device, dtype=dtype)
        return Work(**made, eps=torch.full((1,), config.norm_eps, device=device, dtype=torch.float32))


def _parts(config: ModelConfig, qk, qkv) -> dict[str, torch.Tensor]:
    """q, k and v inside what they are computed into."""
    v = qkv.view(len(qkv), -1, config.head_dim)[:, config.heads + config.kv_heads :]
    return {"q": qk[:, : config.heads], "k": qk[:, config.heads :], "v": v}


def project_qkv(config: ModelConfig, layer: Layer, expert: Expert, work: Work):
    """work.x -> normed, projected, per-head normed and rotated work.q, work.k, work.v."""
    total = config.heads + config.kv_heads
    rms_norm(work.x, expert.attn_norm, work.eps, work.h, work.scale)
    linear(work.h, layer.qkv, work.qkv)
    raw = work.qkv.view(-1, total + config.kv_heads, config.head_dim)[:, :total]
    if layer.qk_norm is not None:
        rms_norm(raw, layer.qk_norm, work.eps, raw, work.qk_scale)
    rotate(raw, work.cos, work.sin, work.qk)
    if len(raw) > 1:
        for name, part in _parts(config, work.qk, work.qkv).items():
            getattr(work, name).copy_(part)


def project_out(layer: Layer, work: Work):
    """Adds the attention's output projection to the residual stream."""
    add_linear(work.attended.flatten(1), layer.out, work.x)


def mlp(config: ModelConfig, expert: Expert, work: Work):
    """Adds the gated MLP to the residual stream."""
    rms_norm(work.x, expert.mlp_norm, work.eps, work.h, work.scale)
    linear(work.h, expert.gate_up, work.gate_up)
    swiglu(work.gate_up, work.act)
    add_linear(work.act, expert.down, work.x)


def attend_cache(config: ModelConfig, work: Work, keys, values, slots, unfilled, scores):
    """One position a row: writes work.k and work.v into the cache at `slots`, then attends to all that is filled.

    keys, values: [B, kv_heads, S, D]; slots: [B * kv_heads] flat cache rows; unfilled: [B, 1, S] bool.
    """
    dim, kv_heads = config.head_dim, config.kv_heads
    keys.view(-1, dim).index_copy_(0, slots, work.k.view(-1, dim))
    values.view(-1, dim).index_copy_(0, slots, work.v.view(-1, dim))
    grouped = (-1, config.heads // kv_heads, dim)
    attend(
        work.q.view(grouped),
        keys.view(-1, *keys.shape[2:]),
        values.view(-1, *values.shape[2:]),
        unfilled,
        dim**-0.5,
        scores,
        work.attended.view(grouped),
    )
