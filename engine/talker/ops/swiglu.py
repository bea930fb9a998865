"""The gated activation of the MLP into a given buffer."""

import torch


def swiglu(gate_up, out):
    """out = silu(gate) * up with gate_up [R, 2 * I] and out [R, I]."""
    width = out.shape[-1]
    torch.ops.aten.silu.out(gate_up[:, :width], out=out)
    out.mul_(gate_up[:, width:])
