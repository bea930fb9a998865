"""Attention of one query per row over the static KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    empty: torch.Tensor,
    scale: float,
    scores: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Grouped-query softmax attention of one position per row.

    q, out: [B * kv_heads, G, D]; keys, values: [B * kv_heads, S, D], the whole cache of one layer;
    empty: [B, 1, S] bool, True for slots that the row has not filled; scores: [B * kv_heads, G, S] scratch in the
    model's dtype. The softmax always computes in fp32.
    """
    batch, slots = empty.shape[0], empty.shape[2]
    torch.baddbmm(scores, q, keys.transpose(1, 2), beta=0.0, alpha=scale, out=scores)
    scores.view(batch, -1, slots).masked_fill_(empty, float("-inf"))
    torch.softmax(scores, dim=-1, out=scores)
    torch.bmm(scores, values, out=out)


def attend_filled(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    filled: Sequence[int],
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write k and v to each row's last filled slot, and attend like `attend`, but one row at a time, to filled slots.

    q, out: [B, heads, D]; k, v: [B, kv_heads, D]; keys, values: [B, kv_heads, S, D], the whole cache of one layer.
    filled: filled slots of each row, which must be known on the host. A row's result does not depend on other rows,
    not even in rounding.
    """
    grouped = (1, k.shape[1], -1, k.shape[2])
    for row, slots in enumerate(filled):
        own, held = keys[row, :, :slots], values[row, :, :slots]
        own[:, -1].copy_(k[row])
        held[:, -1].copy_(v[row])
        attended = F.scaled_dot_product_attention(q[row].view(grouped), own[None], held[None], scale=scale)
        out[row].copy_(attended.view(out.shape[1:]))
