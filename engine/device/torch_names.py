"""torch functions that are not public API: their purpose, and the effect if torch lacks them.

tests/unit/test_torch_names.py fails on any machine if a torch release moves one of them.
"""

from __future__ import annotations

import logging

import torch

log = logging.getLogger("higgs_tts")


def silu_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """out = silu(x); the public function cannot write into a buffer. Missing: AttributeError in every step."""
    torch.ops.aten.silu.out(x, out=out)


def weight_norm(direction: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Scale `direction` to `length` [1, ..., n], with the norm over all axes but the last.

    Called by name because codes depend on the order of its sums: written out in torch ops, results differ by 5e-6.
    The public parametrizations.weight_norm also calls it, but stores weights in a reference cycle.
    Missing: AttributeError for every voice from a clip.
    """
    return torch.ops.aten._weight_norm(direction, length, direction.dim() - 1)


def storage_id(tensor: torch.Tensor) -> int:
    """Return a storage's identity. Works on the meta device, where all addresses are 0.

    Missing: AttributeError when an engine opens.
    """
    return tensor.untyped_storage()._cdata


def release_pinned_memory() -> None:
    """Release unused pinned host memory. Missing before torch 2.6: torch then keeps it."""
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()


def clear_cublas_workspaces() -> None:
    """Free torch's cuBLAS workspaces for the whole process. Missing: they stay, 32 MB per stream."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
    else:
        log.debug("Higgs TTS: this torch cannot free cuBLAS's workspaces.")
