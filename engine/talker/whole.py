"""Differentiable pass over whole sequences, for training. It computes what `fill` in prefill.py does, without a cache.

All rows have one length and are padded at the end, so every shape is fixed, and a causal position never sees padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ..device.deterministic import deterministic
from .config import ModelConfig
from .layers import Layer
from .low_rank import LowRank, product
from .prefill import Tables
from .weight import Weight

Changes = Mapping[Weight, LowRank]


def embed(
    talker: Tables,
    text: torch.Tensor,
    tokens: torch.Tensor,
    codes: torch.Tensor,
    is_code: torch.Tensor,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Embed rows: tokens [B, T], rows of `text` [n, H], or where is_code [B, T] the codes [B, T, K] -> [B, T, H].

    table: a code embedding [K * V, H] fp32 that is trained, instead of the talker's.
    """
    rows = codes + talker.offsets
    spoken = talker.embed_codes[rows].sum(2) if table is None else _Embedded.apply(table, rows, text.dtype)
    return torch.where(is_code[..., None], spoken, text[tokens])


def whole(talker: Tables, x: torch.Tensor, is_code: torch.Tensor, changes: Changes, recompute: bool) -> torch.Tensor:
    """Compute the last hidden states of embedded rows x [B, T, H] -> [B, T, H].

    is_code: [B, T] bool, positions that are codes. recompute: keep only each layer's input for the backward pass.
    """
    tables = talker.cos[: x.shape[1]], talker.sin[: x.shape[1]]
    kinds = is_code[..., None] if talker.family.dual_ffn else None
    for layer in talker.layers:
        given = talker.config, layer, changes, x, kinds, tables
        if recompute:
            x = checkpoint(_block, *given, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
        else:
            x = _block(*given)
    return x


def logits(talker: Tables, hidden: torch.Tensor, norm: torch.Tensor, head: Weight | torch.Tensor) -> torch.Tensor:
    """Compute logits: last hidden states [B, T, H] -> [B * T, K, V] fp32. head: a tensor is trained."""
    normed = F.rms_norm(hidden, hidden.shape[-1:], norm, talker.config.norm_eps).flatten(0, 1)
    scores = product(normed, head) if isinstance(head, Weight) else normed @ head.to(normed.dtype).t()
    return scores.view(-1, talker.config.codebooks, talker.config.code_vocab).float()


class _Embedded(torch.autograd.Function):
    """Sums of K rows of a table [K * V, H]. The gradient is K products, which add up in one order, unlike an index."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table.to(dtype)[rows].sum(-2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        grad, to_table = grads[0].flatten(0, -2), grads[0].new_zeros(ctx.shape, dtype=torch.float32)
        books = rows.flatten(0, -2)
        for part, of_book, all_rows in zip(
            to_table.chunk(books.shape[1]),
            books.unbind(1),
            torch.arange(len(to_table), device=grad.device).chunk(books.shape[1]),
            strict=True,
        ):
            part.copy_((of_book[:, None] == all_rows).to(grad.dtype).t() @ grad)
        return to_table, None, None


def _block(
    config: ModelConfig,
    layer: Layer,
    changes: Changes,
    x: torch.Tensor,
    kinds: torch.Tensor | None,
    tables: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Compute one layer: x [B, T, H] -> [B, T, H]. kinds: [B, T, 1], True for codes; None with one expert."""

    def times(rows: torch.Tensor, weight: Weight) -> torch.Tensor:
        return product(rows, weight, changes.get(weight))

    def normed(rows: torch.Tensor, text: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        if kinds is None:
            return F.rms_norm(rows, rows.shape[-1:], text, config.norm_eps)
        return F.rms_norm(rows, rows.shape[-1:], None, config.norm_eps) * torch.where(kinds, code, text)

    batch, length, hidden = x.shape
    total = config.heads + config.kv_heads
    h = normed(x, layer.text.attn_norm, layer.code.attn_norm).flatten(0, 1)
    split = times(h, layer.qkv).view(batch, length, -1, config.head_dim)
    qk = split[:, :, :total]
    if layer.qk_norm is not None:
        qk = F.rms_norm(qk, qk.shape[-1:], None, config.norm_eps) * layer.qk_norm
    q, k = _rotated(qk, *tables).transpose(1, 2).split([config.heads, config.kv_heads], 1)
    v = split[:, :, total:].transpose(1, 2)
    group = config.heads // config.kv_heads
    k, v = (one[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for one in (k, v))
    attended = _attended(q, k, v)
    x = x + times(attended.transpose(1, 2).reshape(batch * length, -1), layer.out).view_as(x)
    h = normed(x, layer.text.mlp_norm, layer.code.mlp_norm).flatten(0, 1)
    outs = []
    for expert in (layer.text,) if kinds is None else (layer.text, layer.code):
        gate, up = times(h, expert.gate_up).chunk(2, 1)
        outs.append(times(F.silu(gate) * up, expert.down).view(batch, length, hidden))
    return x + (outs[0] if kinds is None else torch.where(kinds, outs[1], outs[0]))


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute causal attention, [B, heads, T, D]. A CPU adds up in one order by itself."""
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _CausalAttention.apply(q, k, v)


class _CausalAttention(torch.autograd.Function):
    """Causal attention whose backward pass adds up in one order. It computes the forward pass once more."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad(), deterministic(given[0].device, only_warn=False):
            out = F.scaled_dot_product_attention(*given, is_causal=True)
            return torch.autograd.grad(out, given, grads)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [B, T, heads, D] by tables [T, D], as ops/rope.py does."""
    low, high = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]
