"""RMSNorm into a given buffer."""

import torch


def rms_norm(x, weight, eps: float, out, wide, scale):
    """out = x / rms(x) * weight, over the last dimension, in fp32 until the last multiplication.

    x, out: [..., H]; weight: [..., H] broadcast; wide: [..., H] fp32 scratch; scale: [..., 1] fp32 scratch.
    `out` may be `x`.
    """
    wide.copy_(x)
    torch.linalg.vector_norm(wide, dim=-1, keepdim=True, out=scale)
    scale.mul_(scale).mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    wide.mul_(scale)
    out.copy_(wide)
    out.mul_(weight)
