"""Muon: orthogonalised momentum for the matrices of a small transformer, batched by shape."""

from __future__ import annotations

from collections import defaultdict

import torch

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Newton-Schulz, as published with Muon
_ROUNDS = 5
_RMS = 0.2  # RMS of an update over its rate, about Adam's


class Muon(torch.optim.Optimizer):
    """For two-dimensional parameters. `lr` has about the same scale as Adam's."""

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                alike[tuple(sorted(parameter.shape))].append(parameter)
            for parameters in alike.values():
                self._step_alike(group, parameters)

    def _step_alike(self, group: dict, parameters: list[torch.Tensor]) -> None:
        grads = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["moment"] = torch.zeros_like(parameter)
        moments = [self.state[parameter]["moment"] for parameter in parameters]
        torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, moments, group["momentum"])  # Nesterov
        wide = torch.stack([update if update.shape[0] <= update.shape[1] else update.T for update in ahead])
        updates = orthogonal(wide) * (_RMS * max(parameters[0].shape) ** 0.5)
        each = [
            update if parameter.shape[0] <= parameter.shape[1] else update.T
            for parameter, update in zip(parameters, updates.to(parameters[0].dtype), strict=True)
        ]
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, each, alpha=-group["lr"])


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """matrices [K, rows, columns >= rows] -> the nearest ones with all singular values about 1."""
    x = matrices.bfloat16()
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_ROUNDS):
        a = x @ x.mT
        x = _A * x + (_B * a + _C * a @ a) @ x
    return x
