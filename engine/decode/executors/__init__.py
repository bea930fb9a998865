"""Executors: ways to run the same step. Each has step() and close()."""

from __future__ import annotations

from typing import Any

from ...device.memory import PrivatePool
from ..backend import Backend
from .eager import EagerExecutor
from .graph import GraphExecutor

# Each is constructed with (backend, capture stream). A test adds one.
EXECUTORS: dict[str, Any] = {"eager": EagerExecutor, "graph": GraphExecutor}


def make_executor(name: str, backend: Backend, pool: PrivatePool) -> EagerExecutor | GraphExecutor:
    """Make the executor with this name, as in EngineConfig. Captures use the pool's stream.

    Raises GraphError if the capture fails.
    """
    is_cuda = backend.state.device.type == "cuda"
    if name == "auto":
        name = "graph" if is_cuda else "eager"
    return EXECUTORS[name](backend, pool.capture_stream() if is_cuda and name == "graph" else None)


__all__ = ["EXECUTORS", "EagerExecutor", "GraphExecutor", "make_executor"]
