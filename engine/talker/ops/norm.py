"""RMSNorm into a given buffer."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> None:
    """Compute out = x / rms(x) * weight over the last dimension, in fp32 up to the last multiplication.

    x, out: [..., H]; weight: [..., H] broadcast; eps: [1] fp32; scale: [..., 1] fp32 scratch. `out` may be `x`.
    Uses as few ops as possible: each costs a launch even in a graph.
    """
    torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32, out=scale)
    torch.addcmul(eps, scale, scale, value=1.0 / x.shape[-1], out=scale).rsqrt_()
    torch.mul(x, scale, out=out)
    out.mul_(weight)
