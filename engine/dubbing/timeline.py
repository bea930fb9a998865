"""Where the speech of each cue goes, and how much faster it must be to fit."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.config import CueParams
from ..prompt.cues import CueTurns

_MEETS = 0.1  # seconds that one cue may reach into the next by mistake; further, the file has both speak at once
_LEAST = 0.01  # seconds


@dataclass(frozen=True)
class CueTiming:
    """Where speech goes: from when, in seconds, and how many times as fast as it was spoken."""

    start: float
    tempo: float


class Timeline:
    """Cues in the order of their starts. `limits`: until when each may be spoken, in seconds.

    Those who speak at once in the file may do so here; nobody speaks over themselves.
    """

    def __init__(self, cues: Sequence[CueTurns], fit: CueParams):
        self._cues, self._fit = cues, fit
        self.limits = [self._limit(at) for at in range(len(cues))]
        self._next = 0  # the cue that is placed next
        self._open: list[tuple[float, float]] = []  # (when a placed cue should end, when it does), by the first
        self._busy = 0.0  # until when somebody whom the next cue does not overlap speaks
        self._own: dict[str, float] = {}  # until when each speaker does

    def slot(self, at: int) -> float:
        """Seconds that a cue has at its own time."""
        return self.limits[at] - self._cues[at].start

    def place(self, seconds: float) -> CueTiming:
        """The next cue's speech, which takes so long as it was spoken."""
        at, cue, fit = self._next, self._cues[self._next], self._fit
        while self._open and self._open[0][0] <= cue.start + _MEETS:
            self._busy = max(self._busy, heapq.heappop(self._open)[1])
        start = max([cue.start, self._busy, *(self._own.get(name, 0.0) for name in cue.speakers)])
        if not fit.shift:
            start = cue.start
        wanted = seconds / max(self.limits[at] - start, _LEAST)
        tempo = min(max(wanted, 1.0), fit.stretch)
        end = start + seconds / tempo
        heapq.heappush(self._open, (cue.stop, end))
        self._own |= {name: max(end, self._own.get(name, 0.0)) for name in cue.speakers}
        self._next += 1
        return CueTiming(start, tempo)

    def _limit(self, at: int) -> float:
        cue = self._cues[at]
        limit = cue.stop + self._fit.run_on
        for later in self._cues[at + 1 :]:
            if later.start >= limit:
                break
            if later.start >= cue.stop - _MEETS or (later.start > cue.start and later.speakers & cue.speakers):
                return max(cue.start, later.start)
        return limit
