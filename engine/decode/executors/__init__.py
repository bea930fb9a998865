"""Executors: the same step, run in different ways. `make_executor` is the only place that picks one."""

from .eager import EagerExecutor
from .graph import GraphError, GraphExecutor
from .traced import TracedExecutor


def make_executor(name: str, talker, state, pool):
    """A executor with step() and close() over a talker and its state; `name` as in EngineConfig.

    Raises GraphError for a capture that failed.
    """
    if name == "traced":
        return TracedExecutor(talker, state)
    if name == "graph" or (name == "auto" and state.device.type == "cuda"):
        return GraphExecutor(talker, state, pool.capture_stream())
    return EagerExecutor(talker, state)


__all__ = ["EagerExecutor", "GraphError", "GraphExecutor", "TracedExecutor", "make_executor"]
