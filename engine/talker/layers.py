"""One attention, one MLP, one norm, and the buffers they write. Knows no checkpoint, no sampling, no prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import ModelConfig
from ..kernels.attention import attend
from ..kernels.linear import linear
from ..kernels.norm import rms_norm
from ..kernels.rope import rotate
from ..kernels.swiglu import swiglu


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
    wide: torch.Tensor  # [R, H] fp32
    scale: torch.Tensor  # [R, 1] fp32
    qkv: torch.Tensor  # [R, (heads + 2 * kv_heads) * D]
    qk_wide: torch.Tensor  # [R, heads + kv_heads, D] fp32
    qk_scale: torch.Tensor  # [R, heads + kv_heads, 1] fp32
    qk: torch.Tensor  # [R, heads + kv_heads, D] after rotation
    q: torch.Tensor  # [R, heads, D]
    k: torch.Tensor  # [R, kv_heads, D]
    v: torch.Tensor  # [R, kv_heads, D]
    attended: torch.Tensor  # [R, heads, D]
    gate_up: torch.Tensor  # [R, 2 * I]
    act: torch.Tensor  # [R, I]
    cos: torch.Tensor  # [R, D]
    sin: torch.Tensor  # [R, D]

    @staticmethod
    def make(config: ModelConfig, rows: int, device, dtype) -> Work:
        """Uninitialised scratch for `rows` positions."""
        hidden, dim, inner = config.hidden, config.head_dim, config.intermediate
        heads, kv_heads = config.heads, config.kv_heads
        shapes = {
            "x": (hidden,),
            "h": (hidden,),
            "wide": (hidden,),
            "scale": (1,),
            "qkv": ((heads + 2 * kv_heads) * dim,),
            "qk_wide": (heads + kv_heads, dim),
            "qk_scale": (heads + kv_heads, 1),
            "qk": (heads + kv_heads, dim),
            "q": (heads, dim),
            "k": (kv_heads, dim),
            "v": (kv_heads, dim),
            "attended": (heads, dim),
            "gate_up": (2 * inner,),
            "act": (inner,),
            "cos": (dim,),
            "sin": (dim,),
        }
        in_fp32 = {"wide", "scale", "qk_wide", "qk_scale"}
        return Work(
            **{
                name: torch.empty((rows, *shape), device=device, dtype=torch.float32 if name in in_fp32 else dtype)
                for name, shape in shapes.items()
            }
        )


def project_qkv(config: ModelConfig, layer: Layer, expert: Expert, work: Work):
    """work.x -> normed, projected, per-head normed and rotated work.q, work.k, work.v."""
    heads, total = config.heads, config.heads + config.kv_heads
    rms_norm(work.x, expert.attn_norm, config.norm_eps, work.h, work.wide, work.scale)
    linear(work.h, layer.qkv, work.qkv)
    split = work.qkv.view(-1, total + config.kv_heads, config.head_dim)
    raw = split[:, :total]
    if layer.qk_norm is not None:
        rms_norm(raw, layer.qk_norm, config.norm_eps, raw, work.qk_wide, work.qk_scale)
    rotate(raw, work.cos, work.sin, work.qk)
    work.q.copy_(work.qk[:, :heads])
    work.k.copy_(work.qk[:, heads:])
    work.v.copy_(split[:, total:])


def project_out(layer: Layer, work: Work):
    """Adds the attention's output projection to the residual stream."""
    linear(work.attended.flatten(1), layer.out, work.h)
    work.x.add_(work.h)


def mlp(config: ModelConfig, expert: Expert, work: Work):
    """Adds the gated MLP to the residual stream."""
    rms_norm(work.x, expert.mlp_norm, config.norm_eps, work.h, work.wide, work.scale)
    linear(work.h, expert.gate_up, work.gate_up)
    swiglu(work.gate_up, work.act)
    linear(work.act, expert.down, work.h)
    work.x.add_(work.h)


def attend_cache(config: ModelConfig, work: Work, keys, values, slots, unfilled, scores, wide, probs):
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
        wide,
        probs,
        work.attended.view(grouped),
    )
