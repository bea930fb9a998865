"""Matrix products into a given buffer."""

import torch


def linear(x, weight, out):
    """out = x @ weight.T with x [R, in], weight [out, in], out [R, out]."""
    torch.mm(x, weight.t(), out=out)


def add_linear(x, weight, out):
    """out += x @ weight.T, with shapes as for `linear`."""
    out.addmm_(x, weight.t())


def linear_in_shares(x, weight, out):
    """The P products whose sum is x @ weight.T, each over a share of the inputs, with out [P, R, out]."""
    shares, inner = len(out), x.shape[1]
    x = x.view(-1, shares, inner // shares).transpose(0, 1)
    torch.bmm(x, weight.view(-1, shares, inner // shares).permute(1, 2, 0), out=out)
