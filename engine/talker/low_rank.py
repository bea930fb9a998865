"""Low-rank changes (LoRA) of frozen weight matrices, and the product of both, which autograd can pass through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .weight import Weight


@dataclass(frozen=True, eq=False)
class LowRank:
    """Trainable change of a matrix whose rows are several parts stacked, such as queries, keys and values.

    a: [parts * r, in]. b: one [rows, r] per part. The change of a part is factor * b @ a.
    """

    a: torch.Tensor
    b: tuple[torch.Tensor, ...]
    factor: float


def product(x: torch.Tensor, weight: Weight, change: LowRank | None = None) -> torch.Tensor:
    """Return x @ (W + change).T for x [n, in] as [n, out]. Differentiable in x and the change; W stays frozen.

    A quantised matrix is dequantised when it is used, in the backward pass once more.
    """
    if change is None:
        return _Frozen.apply(x, weight)
    return _Adapted.apply(x, weight, change.factor, change.a, *change.b)


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        ctx.weight = weight
        return x @ weight.dense(x.dtype).t()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] @ ctx.weight.dense(grads[0].dtype), None


class _Adapted(torch.autograd.Function):
    """One function for both products, so that nothing of the base's size is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: Weight, factor: float, a: torch.Tensor, *b: torch.Tensor
    ) -> torch.Tensor:
        out = x @ weight.dense(x.dtype).t()
        inner = (x @ a.to(x.dtype).t()).mul_(factor)  # [n, parts * r]
        parts = out.split([len(one) for one in b], 1)
        for part, held, one in zip(parts, inner.chunk(len(b), 1), b, strict=True):
            part.addmm_(held, one.to(x.dtype).t())
        ctx.weight, ctx.factor = weight, factor
        ctx.save_for_backward(x, inner, a, *b)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        x, inner, a, *b = ctx.saved_tensors
        parts = grad.split([len(one) for one in b], 1)
        to_b = [
            (part.t() @ held).to(one.dtype) for part, held, one in zip(parts, inner.chunk(len(b), 1), b, strict=True)
        ]
        to_inner = torch.cat([part @ one.to(grad.dtype) for part, one in zip(parts, b, strict=True)], 1)
        to_inner.mul_(ctx.factor)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (grad @ ctx.weight.dense(grad.dtype)).addmm_(to_inner, a.to(grad.dtype))
        return to_x, None, None, (to_inner.t() @ x).to(a.dtype), *to_b
