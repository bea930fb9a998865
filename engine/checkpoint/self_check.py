"""Cheap check of loaded weights that catches broken downloads and conversions before the first speech."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..core.errors import HiggsError
from ..talker.weight import format_of
from .load import ON_HOST, Checkpoint

# Root mean squares of trained matrices lie between 0.01 and 1; those of 8-bit codes without scales are above 30.
MOST = 16.0
MOST_NORM = 1e4
MOST_LOGIT = 1e4  # trained models stay below 100


def check_weights(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that the talker's tensors are finite and of plausible size.

    Quantised tensors are judged by their scales. The text embedding stays in its file and is not read.
    Raises HiggsError naming the first bad tensor.
    """
    judged = {name: tensors[name] for name in checkpoint.plan.parts if name != ON_HOST}
    sizes = torch.stack([_size(data) for data in judged.values()]).tolist()
    for (name, data), size in zip(judged.items(), sizes, strict=True):
        if not size <= (MOST_NORM if data.dim() == 1 else MOST):  # also catches NaN
            key = checkpoint.plan.parts[name][0].stored[0]
            fault = f"contains weights of {size:,.0f}" if math.isfinite(size) else "contains NaN or infinity"
            raise _broken(checkpoint, f"{key} in {checkpoint.talker.file_of(key)} {fault}")


def check_logits(checkpoint: Checkpoint, logits: torch.Tensor) -> None:
    """Check that the talker's logits [K * V] fp32 after some prompt are plausible. Raises HiggsError if not."""
    most = float(logits.abs().max())
    if not most <= MOST_LOGIT:
        raise _broken(checkpoint, f"after a short prompt their logits reach {most:,.0f}")


def _size(data: torch.Tensor) -> torch.Tensor:
    """Return a tensor's root mean square in fp32. For a quantised tensor, that of the maxima its scales allow."""
    format = format_of(data.dtype)
    if format.scales is not None:
        data = format.scales(data) * format.largest
    return torch.linalg.vector_norm(data, dtype=torch.float32) / math.sqrt(data.numel())


def _broken(checkpoint: Checkpoint, fault: str) -> HiggsError:
    lora = " and of the LoRA" if checkpoint.adapters.changes else ""
    return HiggsError(
        f"The weights in {checkpoint.folder} are damaged or were converted incorrectly: {fault}. Download the files of "
        f"the model{lora} again, or repeat the conversion."
    )
