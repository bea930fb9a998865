"""One query a row against the static cache."""

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
    """Softmax attention of one position a row, grouped queries.

    q, out: [B * kv_heads, G, D]; keys, values: [B * kv_heads, S, D], the whole cache of one layer;
    empty: [B, 1, S] bool, true where the cache holds nothing for the row; scores: [B * kv_heads, G, S] scratch in
    the model's dtype. The softmax computes in fp32 whatever that is.
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
    """As `attend`, where the host knows how many slots each row has filled: reads no others, and a row at a time.

    A row's result depends on nothing of other rows, not even in rounding.
    """
    heads, group = len(q) // len(filled), q.shape[1]
    for row, slots in enumerate(filled):
        part = slice(row * heads, (row + 1) * heads)
        weights = scores[part].view(-1)[: heads * group * slots].view(heads, group, slots)
        torch.baddbmm(weights, q[part], keys[part, :slots].transpose(1, 2), beta=0.0, alpha=scale, out=weights)
        torch.softmax(weights, dim=-1, out=weights)
        torch.bmm(weights, values[part, :slots], out=out[part])
