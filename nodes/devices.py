"""The loader's choices of device and CUDA graphs, in the engine's terms. Takes no memory on a device."""

from __future__ import annotations

import logging

import comfy.model_management as mm
import torch

from ..engine import GRAPHS

log = logging.getLogger("higgs_tts")


def device_names() -> list[str]:
    """What the loader offers. Initialises no device: torch has counted them before packs are loaded."""
    if mm.get_torch_device().type != "cuda":
        return ["auto", "cpu"]
    return ["auto", *(f"cuda:{index}" for index in range(torch.cuda.device_count())), "cpu"]


def resolve_device(name: str) -> tuple[str, str]:
    """(device, warning) of a choice. A CUDA device has its index: ComfyUI never unloads from one without.

    "auto" is the CPU where there is no CUDA. A device that is not here, saved on another machine, becomes "auto" with a
    warning.
    """
    default = mm.get_torch_device()
    auto = str(default) if default.type == "cuda" else "cpu"
    if name == "auto":
        return auto, ""
    if name in device_names():
        return name, ""
    warning = f"The device {name} is not on this machine, so {auto} is used. Choose another one in Higgs Load Model."
    log.warning("Higgs TTS: %s", warning)
    return auto, warning


def resolve_runner(graphs: str) -> str:
    """The engine's runner for a choice. auto also heeds ComfyUI's --disable-cuda-graphs (0.33 and newer)."""
    if graphs == "auto" and getattr(mm.args, "disable_cuda_graphs", False):
        return "eager"
    return GRAPHS[graphs]
