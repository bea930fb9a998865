"""SwiGLU, the gated activation of the MLP, into a given buffer."""

from __future__ import annotations

import torch

from ...device.torch_names import silu_into


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """Compute out = silu(gate) * up, with gate_up [R, 2 * I] and out [R, I]."""
    width = out.shape[-1]
    silu_into(gate_up[:, :width], out)
    out.mul_(gate_up[:, width:])
