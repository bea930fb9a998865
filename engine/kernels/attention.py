"""One query a row against the static cache."""

import torch


def attend(q, keys, values, unfilled, scale: float, scores, wide, probs, out):
    """Softmax attention of one position a row, grouped queries.

    q, out: [B * kv_heads, G, D]; keys, values: [B * kv_heads, S, D], the whole cache of one layer;
    unfilled: [B, 1, S] bool, true where the cache holds nothing for the row; scores, probs: [B * kv_heads, G, S] in
    the model's dtype and wide the same in fp32. In an fp32 model the three are one buffer.
    """
    batch, slots = unfilled.shape[0], unfilled.shape[2]
    torch.baddbmm(scores, q, keys.transpose(1, 2), beta=0.0, alpha=scale, out=scores)
    if wide is not scores:
        wide.copy_(scores)
    wide.view(batch, -1, slots).masked_fill_(unfilled, float("-inf"))
    torch.softmax(wide, dim=-1, out=wide)
    if probs is not wide:
        probs.copy_(wide)
    torch.bmm(probs, values, out=out)
