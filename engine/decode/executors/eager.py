"""Runs the step op by op, as Python says."""


class EagerExecutor:
    """Calls the backend's step each time."""

    name = "eager"

    def __init__(self, backend, stream=None):
        self._backend = backend

    def step(self):
        self._backend.step()

    def close(self):
        self._backend = None
