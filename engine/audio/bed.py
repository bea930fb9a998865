"""Music under speech: repeated to its end, lowered while somebody speaks, faded out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

FALL, RISE = 0.25, 0.5  # seconds in which a bed fades down and up
_TOGETHER = 1.5  # seconds: it stays down in shorter pauses
AFTER = 2.0  # seconds of music after speech that has no silence of its own there
_OUT = 1.0  # seconds of the last fade
_SEAM = 1.0  # seconds in which its end fades into its start

Spans = Iterable[tuple[float, float]]  # (start, end) of speech, in seconds


def stretches(spans: Spans) -> list[tuple[float, float]]:
    """Return (start, end) of continuous speech, including short pauses."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] < _TOGETHER:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


class Bed:
    """Music that lasts as long as speech. wav: [C, n] at `rate` Hz. spans: of the speech. samples: of the whole.

    lower: dB by which it is lowered during speech.
    """

    def __init__(self, wav: torch.Tensor, rate: int, spans: Spans, samples: int, lower: float):
        self._wav, self._rate = wav, rate
        self._seam = min(round(_SEAM * rate), wav.shape[1] // 2)
        gain, points = 10 ** (-lower / 20), [(-FALL, 1.0)]
        for start, end in stretches(spans):
            points += [(start - FALL, 1.0), (start, gain), (end, gain), (end + RISE, 1.0)]
        self._times, self._gains = np.array(points).T
        self._end = samples / rate

    def piece(self, start: int, stop: int) -> torch.Tensor:
        """Return samples start..stop [C, n]."""
        at = np.arange(start, stop)
        seconds = at / self._rate
        gains = np.interp(seconds, self._times, self._gains) * ((self._end - seconds) / _OUT).clip(0.0, 1.0)
        return self._repeated(torch.from_numpy(at)) * torch.from_numpy(gains).float()

    def _repeated(self, at: torch.Tensor) -> torch.Tensor:
        """Return samples [C, n] of endless repetition, each end faded into the next start."""
        if not self._wav.shape[1]:
            return torch.zeros(len(self._wav), len(at))
        period = self._wav.shape[1] - self._seam
        place = at % period
        sound = self._wav[:, place]
        ending = (at >= period) & (place < self._seam)
        share = place[ending] / self._seam
        sound[:, ending] = sound[:, ending] * share + self._wav[:, period + place[ending]] * (1 - share)
        return sound
