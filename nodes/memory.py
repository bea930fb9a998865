"""What nodes ask of ComfyUI's memory management: load this model, free memory for that work."""

from __future__ import annotations

import comfy.model_management as mm
import torch

from ..engine import Engine
from .patcher import HiggsPatcher


def load_engine(patcher: HiggsPatcher) -> Engine:
    """The open engine. Call it once a node: each call may unload other models and flush caches."""
    mm.load_models_gpu([patcher])
    return patcher.engine


def free_memory(size: int, device: torch.device) -> None:
    """Free `size` bytes and what inference takes besides. Like ComfyUI's own loads, it does nothing for the CPU."""
    if device.type != "cpu":
        mm.free_memory(size + mm.minimum_inference_memory(), device)
