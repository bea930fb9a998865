"""One query a row against the static cache."""

from __future__ import annotations

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
