"""Rotary position embedding into a given buffer, half-split (neox) rotation."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> None:
    """Compute out = x * cos + rotate_half(x) * sin.

    x, out: [R, heads, D], not the same tensor; cos, sin: [R, D] at the rows' positions.
    """
    half = x.shape[-1] // 2
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1.0)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
