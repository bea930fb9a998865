"""Predicts the backend for a model on a device without building it."""

from __future__ import annotations

import torch

from ...cuda.nvrtc import KernelUnavailable, compile_cubin
from ...talker.config import ModelConfig
from .single import SingleKernel, unfit

_PROBE = 'extern "C" __global__ void probe() {}'


def decode_ops(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str:
    """Describe the backend for one row: our kernel, or torch ops and why. Compiles at most an empty kernel."""
    reason = unfit(config, device, dtype)
    if reason is None:
        major, minor = torch.cuda.get_device_capability(device)
        try:
            compile_cubin(_PROBE, f"{major}{minor}", ())
        except KernelUnavailable as error:
            reason = str(error)
    return f"torch ops ({reason})" if reason else SingleKernel.name
