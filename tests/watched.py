"""A test executor that lets a test watch the steps, hold them and make them fail."""

import contextlib

from higgs_tts.engine.decode.executors import EagerExecutor

_WATCHERS = []


@contextlib.contextmanager
def watching(watch):
    """Call watch(backend) before each step of all engines with runner="watched"."""
    _WATCHERS.append(watch)
    try:
        yield
    finally:
        _WATCHERS.remove(watch)


class WatchedExecutor(EagerExecutor):
    """Runs each step op by op, after the watchers."""

    def __init__(self, backend, stream=None):
        super().__init__(backend, stream)
        self.watched = backend

    def step(self):
        for watch in tuple(_WATCHERS):
            watch(self.watched)
        super().step()

    def close(self):
        super().close()
        self.watched = None
