"""SwiGLU, the gated activation of the MLP, into a given buffer."""

from __future__ import annotations

import torch

from ...device.torch_names import silu_into


def swiglu(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
    """Compute out = silu(gate) * up, all [R, I]."""
    silu_into(gate, out)
    out.mul_(up)
