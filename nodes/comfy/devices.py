"""The loader's choices of device and CUDA graphs, in the engine's terms. Takes no memory on a device."""

from __future__ import annotations

import logging
import re

import comfy.model_management as mm
import torch

from ...engine import GRAPHS

log = logging.getLogger("higgs_tts")


ALL = "all GPUs"
_GPU = re.compile(r"(?:gpu|cuda):(\d+)")  # cuda:0 is how earlier versions named the first


class _Devices(list[str]):
    """Options of which ComfyUI refuses none: a device saved on another machine becomes "auto" when it runs.

    Naming the input in `validate_inputs` would do the same, but ComfyUI tells an error once for each input named there.
    """

    def __contains__(self, name: object) -> bool:
        return True


def device_names() -> list[str]:
    """Devices that the loader offers, named as by ComfyUI's device nodes. Initialises no device: torch has counted them
    before packs are loaded."""
    count = _gpu_count()
    gpus = [*(f"gpu:{index}" for index in range(count)), ALL] if count > 1 else []
    return _Devices(["auto", *gpus, "cpu"])


def resolve_devices(name: object) -> tuple[list[str], str]:
    """(devices, warning) of a choice. A CUDA device has its index: ComfyUI never unloads from one without.

    "auto" is the CPU where there is no CUDA. A device that is not here, saved on another machine, becomes "auto" with a
    warning. ComfyUI's own device comes first of all.
    """
    default = mm.get_torch_device()
    auto = str(default) if default.type == "cuda" else "cpu"
    if name in ("auto", "cpu"):
        return [auto if name == "auto" else name], ""
    here = [f"cuda:{index}" for index in range(_gpu_count())]
    if name == ALL and here:
        return sorted(here, key=lambda device: device != auto), ""
    match = _GPU.fullmatch(str(name))
    if match and f"cuda:{match[1]}" in here:
        return [f"cuda:{match[1]}"], ""
    if name == ALL:
        warning = f"This machine has no usable GPU, so {auto} is used instead."
    else:
        absent = f"This machine has no device {str(name)[:80]}, so {auto} is used instead."
        warning = f"{absent} Choose another in Higgs Load Model."
    log.warning("Higgs TTS: %s", warning)
    return [auto], warning


def _gpu_count() -> int:
    return torch.cuda.device_count() if mm.get_torch_device().type == "cuda" else 0


def resolve_runner(graphs: str) -> str:
    """The engine's runner for a choice. auto also heeds ComfyUI's --disable-cuda-graphs (0.33 and newer)."""
    if graphs == "auto" and getattr(mm.args, "disable_cuda_graphs", False):
        return "eager"
    return GRAPHS[graphs]
