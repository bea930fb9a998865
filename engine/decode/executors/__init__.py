"""Runners: the same step, run in different ways. `make_runner` is the only place that picks one."""

from .eager import EagerRunner
from .graph import GraphError, GraphRunner
from .traced import TracedRunner


def make_runner(name: str, talker, state, pool):
    """A runner with step() and close() over a talker and its state; `name` as in EngineConfig.

    Raises GraphError for a capture that failed.
    """
    if name == "traced":
        return TracedRunner(talker, state)
    if name == "graph" or (name == "auto" and state.device.type == "cuda"):
        return GraphRunner(talker, state, pool.capture_stream())
    return EagerRunner(talker, state)


__all__ = ["EagerRunner", "GraphError", "GraphRunner", "TracedRunner", "make_runner"]
