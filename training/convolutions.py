"""The codec's convolutions and activations in a form that trains fast."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

_EPS = 1e-9


def _snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return x + torch.sin(alpha * x).square() / (alpha + _EPS)


def _snake_back(grad: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sine, inverse = torch.sin(alpha * x), 1 / (alpha + _EPS)
    slope = 2 * sine * torch.cos(alpha * x) * inverse
    wide = grad * (x * slope - (sine * inverse).square())
    return grad * (1 + alpha * slope), wide.sum(2, keepdim=True)  # one row each: over the batch too is slow


class _SnakeFunction(torch.autograd.Function):
    """Keeps only its input: the plain expression would keep four tensors of that size and launch ten kernels."""

    forward_now, backward_now = staticmethod(_snake), staticmethod(_snake_back)

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return _SnakeFunction.forward_now(x, alpha.detach())  # a parameter would be compiled for its exact width

    @staticmethod
    def backward(ctx, grad):
        x, alpha = ctx.saved_tensors
        slope, wide = _SnakeFunction.backward_now(grad.contiguous(), x, alpha.detach())
        return slope, wide.sum(0, keepdim=True)


def fuse_snakes() -> None:
    """Compile this process's activations from now on, forward and backward into one kernel each."""
    _SnakeFunction.forward_now = staticmethod(torch.compile(_snake, dynamic=True))
    _SnakeFunction.backward_now = staticmethod(torch.compile(_snake_back, dynamic=True))


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, with one alpha per channel."""

    def __init__(self, alpha: torch.Tensor):
        super().__init__()
        self.alpha = nn.Parameter(alpha.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return _SnakeFunction.apply(x, self.alpha)


def trainable(part: nn.Module) -> nn.Module:
    """Make the engine's layers trainable: convolutions with weight norm, and activations that use less memory."""
    for module in list(part.modules()):
        for name, child in module.named_children():
            if hasattr(child, "alpha"):
                setattr(module, name, Snake(child.alpha))
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            weight_norm(module)
    return part
