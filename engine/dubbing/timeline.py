"""Place each cue's speech in time, and compute the speed-up it needs to fit."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.config import CueParams
from ..prompt.cues import CueTurns

_MEETS = 0.1  # seconds that cues may overlap by mistake; beyond this, the file wants simultaneous speech
_LEAST = 0.01  # seconds


@dataclass(frozen=True)
class CueTiming:
    """Placement of speech: its start in seconds, and its speed-up."""

    start: float
    tempo: float


class Timeline:
    """Cues in order of their starts. `limits`: latest end of each, in seconds.

    Speakers who overlap in the file may overlap here, but nobody speaks over themselves.
    """

    def __init__(self, cues: Sequence[CueTurns], fit: CueParams):
        self._cues, self._fit = cues, fit
        self.limits = [self._limit(at) for at in range(len(cues))]
        self._next = 0  # the next cue to place
        self._open: list[tuple[float, float]] = []  # (planned end, actual end) of placed cues, sorted
        self._busy = 0.0  # end of all speech that the next cue does not overlap
        self._own: dict[str, float] = {}  # end of each speaker's speech

    def slot(self, at: int) -> float:
        """Return the seconds available to a cue at its own time."""
        return self.limits[at] - self._cues[at].start

    def place(self, seconds: float) -> CueTiming:
        """Place the next cue's speech, given its length in seconds."""
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
