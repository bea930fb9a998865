"""Choice of a checkpoint's dtype on a device."""

from __future__ import annotations

import torch

from ..core.errors import HiggsError
from ..talker.weight import KEPT_BY
from .load import Checkpoint, require_quantizable, talker_sizes

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# GPU bytes needed beside bf16 weights: cache, codec, CUDA context, temporary memory of prompts and clips, the desktop.
_BESIDE_WEIGHTS = 2560 << 20


def auto_dtype(checkpoint: Checkpoint, device: torch.device) -> str:
    """Return EngineConfig's dtype for "auto": fp32 on a CPU, bf16 on a GPU, int8 if bf16 does not fit the GPU.

    A quantised checkpoint gets the format closest to its own. The choice depends on the GPU's total memory and the
    checkpoint's size, so other programs do not change it.
    """
    held = checkpoint.talker.weights
    held = KEPT_BY.get(held, held)
    if held and _is_quantizable(checkpoint, held):
        return held
    if device.type == "cpu":
        return "fp32"
    weights = sum(talker_sizes(checkpoint, torch.bfloat16))
    fits = weights + _BESIDE_WEIGHTS <= torch.cuda.get_device_properties(device).total_memory
    return "bf16" if fits or not _is_quantizable(checkpoint, "int8") else "int8"


def _is_quantizable(checkpoint: Checkpoint, weights: str) -> bool:
    try:
        require_quantizable(checkpoint, weights)
    except HiggsError:
        return False
    return True


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the compute dtype for an EngineConfig dtype on a device. Weights of int8 and int4 are only stored so."""
    if name not in _DTYPES:
        name = "fp32" if device.type == "cpu" else "bf16"
    return _DTYPES[name]
