"""A test executor that runs the step's Python once, then replays its ops on the same buffers.

Those are a CUDA graph's rules on any device. The tape refuses what a graph cannot hold while it records, so a machine
without a GPU can prove that a step may be captured.
"""

import torch
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


def tensors_of(backend):
    """Return everything that a step reads or writes: weights, state, and the kernels' scratch."""
    return [*backend.talker.tensors(), *backend.state.tensors(), *backend.scratch()]


class TracedExecutor:
    """Records the first step as it runs and replays the tape from then on."""

    name = "traced"

    def __init__(self, backend, stream=None):
        self._backend = backend
        self._calls = None

    def step(self):
        if self._calls is None:
            with Tape(tensors_of(self._backend)) as tape:
                self._backend.step()
            self._calls = tape.calls
            return
        for func, args, kwargs in self._calls:
            func(*args, **kwargs)

    def close(self):
        self._backend = self._calls = None
