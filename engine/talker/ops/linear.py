"""Products with a weight matrix in any format."""

from __future__ import annotations

import torch

from ..weight import Weight


def linear(x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    """Compute out = x @ W.T, with x [R, in], W [out, in], out [R, out]."""
    for rows, matrix in weight.parts(x.dtype):
        torch.mm(x, matrix.t(), out=out[:, rows])


def add_linear(x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    """Compute out += x @ W.T, with shapes as in `linear`."""
    for rows, matrix in weight.parts(x.dtype):
        out[:, rows].addmm_(x, matrix.t())


def split_linear(x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    """Split-K product: n partial products, each over a part of the inputs. out [n, R, out]; their sum is x @ W.T."""
    parts, inner = len(out), x.shape[1]
    x = x.view(-1, parts, inner // parts).transpose(0, 1)
    torch.bmm(x, weight.dense(x.dtype).view(-1, parts, inner // parts).permute(1, 2, 0), out=out)


def project(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return x @ W.T as a new tensor, for passes that are not captured."""
    out = x.new_empty(len(x), weight.shape[0])
    linear(x, weight, out)
    return out
