"""Watched steps: a test sees each step before it runs, may hold it or make it fail, or makes random talkers end."""

import contextlib

from higgs_tts.engine.core.codes import EOC
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


@contextlib.contextmanager
def ending(talker, frames):
    """Make each sequence of a random talker end once it has more frames than frames(sampler), a number or [B]."""
    decode = talker.decode

    def ended(state):
        decode(state)
        state.logits[:, 0, EOC].add_((state.delay.num_generated > frames(state.sampler)) * 1e4)

    talker.decode = ended
    try:
        yield
    finally:
        del talker.decode
