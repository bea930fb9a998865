"""Map the loader's choices of device and CUDA graphs to the engine's. Allocates no device memory."""

from __future__ import annotations

import logging
import re

import comfy.model_management as mm
import torch

from ...engine import GRAPHS

log = logging.getLogger("higgs_tts")


ALL = "all GPUs"
_GPU = re.compile(r"(?:gpu|cuda):(\d+)")  # earlier versions called the first GPU cuda:0


class _Devices(list[str]):
    """Options that accept any value: a device saved on another machine becomes "auto" when the node runs.

    Naming the input in `validate_inputs` would do the same, but ComfyUI repeats an error for each input named there.
    """

    def __contains__(self, name: object) -> bool:
        return True


def device_names() -> list[str]:
    """Return the loader's options, named as in ComfyUI's own device nodes. Initialises no device."""
    count = _gpu_count()
    gpus = [*(f"gpu:{index}" for index in range(count)), ALL] if count > 1 else []
    return _Devices(["auto", *gpus, "cpu"])


def resolve_devices(name: object) -> tuple[list[str], str]:
    """Return (devices, warning) of a choice. CUDA devices have an index, or ComfyUI never unloads from them.

    "auto" is the CPU if there is no CUDA. A missing device, saved on another machine, becomes "auto" with a warning.
    ComfyUI's own device comes first.
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
        warning = f"{absent} Choose another device in Higgs Load Model."
    log.warning("Higgs TTS: %s", warning)
    return [auto], warning


def _gpu_count() -> int:
    return torch.cuda.device_count() if mm.get_torch_device().type == "cuda" else 0


def resolve_runner(graphs: str) -> str:
    """Return the engine's runner for a choice. "auto" also heeds ComfyUI's --disable-cuda-graphs (0.33 and newer)."""
    if graphs == "auto" and getattr(mm.args, "disable_cuda_graphs", False):
        return "eager"
    return GRAPHS[graphs]
