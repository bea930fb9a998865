"""Devices by the names that users give."""

from __future__ import annotations

import torch

from .errors import HiggsError

ALL_GPUS = "all GPUs"


def devices_of(name: str) -> list[str]:
    """Return the device names in a user's choice: one name, several separated by commas, or all GPUs.

    Raises HiggsError if all GPUs are chosen and there is none.
    """
    if name != ALL_GPUS:
        return [part.strip() for part in name.split(",")]
    if not torch.cuda.is_available():
        raise HiggsError(f"The device is {ALL_GPUS}, but PyTorch sees no CUDA GPU here. Use cpu or auto.")
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def device_of(name: str) -> torch.device:
    """Return the device with this name. A CUDA device always has its index.

    Raises HiggsError if the name is invalid or the device does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise HiggsError(f"'{name}' is not a device. Use auto, cpu, or cuda:0 and so on.") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise HiggsError(f"The device is {name}, but Higgs runs on CUDA GPUs and on the CPU. Use auto, cpu or cuda:0.")
    if not torch.cuda.is_available():
        raise HiggsError(f"The device is {name}, but PyTorch sees no CUDA GPU here. Use cpu or auto.")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise HiggsError(
            f"The device is {name}, but the last GPU is cuda:{torch.cuda.device_count() - 1}. Choose another."
        )
    return torch.device("cuda", index)
