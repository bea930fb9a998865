"""Requests to ComfyUI's memory management: load a model, free memory."""

from __future__ import annotations

import logging
import traceback

import comfy.model_management as mm
import torch

from ...engine import Engine, Engines, RemoteEngine
from .remote_model import AnyModel, ServerModel

log = logging.getLogger("higgs_tts")


def load_engine(patcher: AnyModel) -> Engine | Engines | RemoteEngine:
    """Return the open engine, or all that speak together and fit. Call once per node.

    Each call may unload other models and flush caches.
    """
    if isinstance(patcher, ServerModel):
        return patcher.engine
    patchers = [patcher, *patcher.others]
    try:
        mm.load_models_gpu(patchers)
    except torch.cuda.OutOfMemoryError as error:
        if not any(one.engine.opened for one in patchers):
            raise
        traceback.clear_frames(error.__traceback__)
        log.warning("Higgs TTS: at least one GPU has no room for the model. The other GPUs are used.")
    return Engines([one.engine for one in patchers]) if patcher.others else patcher.engine


def free_memory(size: int, device: torch.device) -> None:
    """Free `size` bytes plus what inference needs. Like ComfyUI's own loads, does nothing for the CPU."""
    if device.type != "cpu":
        mm.free_memory(size + mm.minimum_inference_memory(), device)
