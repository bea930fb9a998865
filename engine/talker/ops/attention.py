"""Attention of one query per row over the static KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
    keys: torch.Tensor,
    values: torch.Tensor,
    filled: Sequence[int],
    scale: float,
    scores: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Like `attend`, but one row at a time, reading only its filled slots. Their number must be known on the host.

    A row's result does not depend on other rows, not even in rounding.
    """
    heads, group = len(q) // len(filled), q.shape[1]
    for row, slots in enumerate(filled):
        part = slice(row * heads, (row + 1) * heads)
        weights = scores[part].view(-1)[: heads * group * slots].view(heads, group, slots)
        torch.baddbmm(weights, q[part], keys[part, :slots].transpose(1, 2), beta=0.0, alpha=scale, out=weights)
        torch.softmax(weights, dim=-1, out=weights)
        torch.bmm(weights, values[part, :slots], out=out[part])
