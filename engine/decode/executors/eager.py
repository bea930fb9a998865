"""Runs the step op by op, as Python says."""

from ..step import decode_step


class EagerExecutor:
    """Calls `decode_step` each time."""

    name = "eager"

    def __init__(self, talker, state):
        self._talker, self._state = talker, state

    def step(self):
        decode_step(self._talker, self._state)

    def close(self):
        self._talker = self._state = None
