"""Temporary choice of deterministic kernels on a GPU. Only this file sets it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic(device: torch.device, only_warn: bool = True) -> Iterator[None]:
    """Have torch pick kernels that sum in one order. A CPU's always do.

    only_warn: matrix products do not raise. They would without CUBLAS_WORKSPACE_CONFIG, which matters only if several
    streams share a workspace. But then attention's backward pass adds up in any order, without a word.
    """
    if device.type != "cuda":
        yield
        return
    was_on = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # its type stubs lack the setting
    filled = memory.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=only_warn)
        memory.fill_uninitialized_memory = False  # a launch for every new tensor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        memory.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(was_on, warn_only=warned)
