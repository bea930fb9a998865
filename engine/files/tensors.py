"""Tensors and metadata of a safetensors file that this pack wrote, and writes again."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return (tensors on the host, metadata). Raises OSError or SafetensorError.

    The tensors are copies: those of safetensors keep the file mapped, and Windows replaces no mapped file.
    """
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
