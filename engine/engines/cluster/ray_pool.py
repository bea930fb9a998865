"""Workers of a Ray cluster as a decoder: placed by Ray, started again by Ray, and told of as they stream."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from ...speech.decoder import Stage
from .ray_session import RayPoolSession
from .seats import Seats


class RayPool:
    """A decoder of the workers' decoders."""

    def __init__(self, seats: Seats):
        self._seats, self._numbers = seats, itertools.count()

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[RayPoolSession]:
        session = RayPoolSession(self._seats, stage, next(self._numbers))
        try:
            yield session
        finally:
            session.close()
