"""Runners: the same step, run in different ways. `make_runner` is the only place that picks one."""

from .eager import EagerRunner
from .traced import TracedRunner

_RUNNERS = {"auto": EagerRunner, "eager": EagerRunner, "traced": TracedRunner}


def make_runner(name: str, talker, state):
    """A runner with step() and close() over a talker and its state; `name` as in EngineConfig."""
    return _RUNNERS[name](talker, state)


__all__ = ["EagerRunner", "TracedRunner", "make_runner"]
