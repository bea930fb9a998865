"""Eager executor: runs the step op by op."""

from __future__ import annotations

import contextlib

import torch

from ..backend import Backend


class EagerExecutor:
    """Calls the backend's step each time."""

    name = "eager"

    def __init__(self, backend: Backend, stream: torch.cuda.Stream | None = None):
        self._backend = backend
        backend.state.cache.tells_filled = backend.state.device.type == "cpu"  # on a GPU this would sync

    def step(self) -> None:
        self._backend.step()

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # already closed
            del self._backend
