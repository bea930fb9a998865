"""Traced steps: a runner runs the step's Python once, then replays its ops on the same buffers.

Those are a CUDA graph's rules on any device. The tape refuses what a graph cannot hold while it records, so a machine
without a GPU can prove that a step may be captured.
"""

import contextlib

import torch
from higgs_tts.engine.decode.model_runner import ModelRunner
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SYNCS = {"item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2"}


class StepError(RuntimeError):
    """The step broke a rule of capture."""


class Tape(TorchDispatchMode):
    """Records ops while they run and refuses new storage, host syncs, data-dependent shapes and host constants.

    `known`: the only tensors, including their views, that the step may touch.
    """

    def __init__(self, known):
        super().__init__()
        self.calls = []
        self._known = {t.untyped_storage()._cdata for t in known}
        self._kept = list(known)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in _SYNCS:
            raise StepError(f"{func} waits for the device or has a shape that depends on data")
        self._check((args, kwargs), func, "reads a tensor that is neither a weight nor in the state")
        result = func(*args, **kwargs)
        self._check(result, func, "allocates its result")
        if not func.is_view:
            self.calls.append((func, args, kwargs))
        return result

    def _check(self, values, func, complaint):
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in self._known:
                raise StepError(f"{func} {complaint}")


def tensors_of(runner):
    """Return everything that a step reads or writes: weights, state, and the kernels' scratch."""
    return [*runner.talker.tensors(), *runner.state.tensors(), *runner.scratch()]


def trace(runner):
    """Have a runner record its first step as it runs, and replay the tape from then on."""
    eager, calls = runner.step, []
    runner.on_host = False  # as on a GPU: attention reads the whole cache and masks what is empty

    def step():
        if not calls:
            with Tape(tensors_of(runner)) as tape:
                eager()
            calls.extend(tape.calls)
            return
        for func, args, kwargs in calls:
            func(*args, **kwargs)

    runner.step = step


@contextlib.contextmanager
def tracing():
    """Trace all model runners that are made meanwhile."""
    make = ModelRunner.__init__

    def made(runner, *args, **named):
        make(runner, *args, **named)
        trace(runner)

    ModelRunner.__init__ = made
    try:
        yield
    finally:
        ModelRunner.__init__ = make
