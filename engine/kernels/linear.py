"""Matrix products into a given buffer."""

import torch


def linear(x, weight, out):
    """out = x @ weight.T with x [R, in], weight [out, in], out [R, out]."""
    torch.mm(x, weight.t(), out=out)


def add_linear(x, weight, out):
    """out += x @ weight.T, with shapes as for `linear`."""
    out.addmm_(x, weight.t())
