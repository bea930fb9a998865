"""Runners: the same step, run in different ways. `make_runner` is the only place that picks one."""

from ..errors import HiggsError
from .eager import EagerRunner
from .graph import GraphError, GraphRunner
from .traced import TracedRunner


def make_runner(name: str, talker, state, pool):
    """A runner with step() and close() over a talker and its state; `name` as in EngineConfig.

    Raises HiggsError for graphs on a device that has none, GraphError for a capture that failed.
    """
    on_gpu = state.device.type == "cuda"
    if name == "graph" and not on_gpu:
        raise HiggsError(f"CUDA graphs are on, but the device is {state.device}. Set graphs to auto or off.")
    if name == "traced":
        return TracedRunner(talker, state)
    if name == "graph" or (name == "auto" and on_gpu):
        return GraphRunner(talker, state, pool.capture_stream())
    return EagerRunner(talker, state)


__all__ = ["EagerRunner", "GraphError", "GraphRunner", "TracedRunner", "make_runner"]
