"""Watched steps: a test sees each step before it runs, and may hold it or make it fail."""

import contextlib

from higgs_tts.engine.decode.model_runner import ModelRunner

_WATCHERS = []
_step = ModelRunner.step


@contextlib.contextmanager
def watching(watch):
    """Call watch(runner) before each whole step of every model runner."""
    _WATCHERS.append(watch)
    ModelRunner.step = _watched
    try:
        yield
    finally:
        _WATCHERS.remove(watch)
        if not _WATCHERS:
            ModelRunner.step = _step


def _watched(runner):
    for watch in tuple(_WATCHERS):
        watch(runner)
    _step(runner)
