"""Metrics in Prometheus's text format, version 0.0.4."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable

_BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds to the first sound
_LATEST, _MINUTE = 64, 60  # answers by whose times the next ones are estimated, and their age in seconds
_GAUGES = {
    "calls_open": "Calls that are not answered yet.",
    "rows_running": "Chunks of text that are being spoken.",
    "rows_waiting": "Chunks of text that wait for a row, or for their first frames.",
}


class ServerMetrics:
    """Counts since the server's start. Belongs to the event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._spoken: deque[float] = deque(maxlen=_LATEST)  # times of the latest answers
        self._calls: Counter[tuple[str, int]] = Counter()
        self._errors: Counter[str] = Counter()
        self._first = [0] * (len(_BOUNDS) + 1)
        self._first_seconds = self._speech_seconds = 0.0

    def answered(self, path: str, status: int, kind: str) -> None:
        """Count an answer. kind: the error's, or empty."""
        self._calls[path, status] += 1
        if path == "/v1/audio/speech" and status == 200:
            self._spoken.append(self._now())
        if kind:
            self.failed(kind)

    def seconds_to_answer(self, calls: int) -> int:
        """Return the seconds in which so many calls are answered if it goes on as in the last minute, 1 to 60."""
        ages = [age for at in self._spoken if (age := self._now() - at) < _MINUTE]
        return max(1, min(_MINUTE, math.ceil(calls * ages[0] / len(ages)))) if ages else 1

    def failed(self, kind: str) -> None:
        self._errors[kind] += 1

    def first_sound(self, seconds: float) -> None:
        self._first[bisect_left(_BOUNDS, seconds)] += 1
        self._first_seconds += seconds

    def spoke(self, seconds: float) -> None:
        self._speech_seconds += seconds

    def text(self, changes: int, **gauges: float) -> str:
        """Return all metrics. changes: of adapters. gauges: the present values of _GAUGES."""
        calls = (f'{{path="{path}",status="{status}"}} {n}' for (path, status), n in sorted(self._calls.items()))
        errors = (f'{{kind="{kind}"}} {count}' for kind, count in sorted(self._errors.items()))
        lines = [
            *_family("calls_total", "counter", "Answered calls.", calls),
            *_family("errors_total", "counter", "Calls and texts of batches that failed.", errors),
            *_family("speech_seconds_total", "counter", "Seconds of speech made.", [f" {self._speech_seconds:.3f}"]),
            *_family("adapter_changes_total", "counter", "Changes of the adapter.", [f" {changes}"]),
            *_family("first_sound_seconds", "histogram", "Time to the first sound of a stream.", self._histogram()),
        ]
        for name, about in _GAUGES.items():
            lines += _family(name, "gauge", about, [f" {gauges[name]:g}"])
        return "\n".join(lines) + "\n"

    def _histogram(self) -> Iterable[str]:
        total = 0
        for bound, count in zip((*(f"{one:g}" for one in _BOUNDS), "+Inf"), self._first, strict=True):
            total += count
            yield f'_bucket{{le="{bound}"}} {total}'
        yield f"_sum {self._first_seconds:.6f}"
        yield f"_count {total}"


def _family(name: str, kind: str, about: str, samples: Iterable[str]) -> list[str]:
    name = f"higgs_tts_{name}"
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *(name + sample for sample in samples)]
