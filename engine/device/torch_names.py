"""Names of torch that its documentation does not promise: what each is for, and what happens where it is missing.

tests/unit/test_torch_names.py fails on a torch that has moved one of them, on any machine.
"""

from __future__ import annotations

import logging

import torch

log = logging.getLogger("higgs_tts")


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention, causal from the last position back: q [1, heads, n, D], k and v [1, kv_heads, m, D].

    By name, because torch's own choice on new GPUs is cuDNN's attention, which compiles a plan for every new length.
    Missing: AttributeError, upon which prefill.py takes torch's choice.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[0]


def silu_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """out = silu(x); the public function cannot write into a buffer. Missing: AttributeError in every step."""
    torch.ops.aten.silu.out(x, out=out)


def weight_norm(direction: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """`direction` scaled to `length` [1, ..., n], whose norm is over all axes but the last.

    By name, because its sums decide codes: written out they differ by 5e-6. torch's parametrizations.weight_norm calls
    it, whose way of holding weights is a reference cycle. Missing: AttributeError for every voice from a clip.
    """
    return torch.ops.aten._weight_norm(direction, length, direction.dim() - 1)


def storage_id(tensor: torch.Tensor) -> int:
    """Tells storages apart on the meta device too, where all have the address 0. Missing: AttributeError on opening."""
    return tensor.untyped_storage()._cdata


def release_pinned_memory() -> None:
    """Gives pinned host memory that is not in use back. Missing before torch 2.6: torch then keeps it."""
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()


def clear_cublas_workspaces() -> None:
    """Frees the workspaces that torch keeps for cuBLAS, of the whole process. Missing: they stay, 32 MB a stream."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
    else:
        log.debug("Higgs TTS: this torch cannot free cuBLAS's workspaces.")
