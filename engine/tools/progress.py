"""Progress of speech on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from ..dubbing.speak import CueSpeech
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener

Speech = TypeVar("Speech", SpeechResult, CueSpeech)
_EVERY = 10.0  # seconds between lines


class LongWork(Protocol):
    """Progress of a book or a training. As text, it says what is being done."""

    @property
    def share(self) -> float: ...


class _Lines:
    """A file for tqdm that writes each state of the bar as a line to stderr."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)


def _bar(line: str, **settings: Any) -> tqdm:
    """Return a bar on stderr. If that is not a terminal, the bar writes `line` now and then, and at its end."""
    if not sys.stderr.isatty():
        settings |= {"file": _Lines(), "mininterval": _EVERY, "bar_format": line}
    return tqdm(**settings)


def with_bar(speak: Callable[..., Speech]) -> Speech:
    """Return `speak(listener=...)`, showing its frames on stderr."""
    line = "{desc}: {n_fmt} of {total_fmt} frames in {elapsed}, {remaining} left"
    with _bar(line, desc="speaking", unit="frame") as bar:

        def on_frame(done: int, expected: int) -> None:
            bar.total = expected
            bar.update(done - bar.n)

        speech = speak(listener=Listener(on_frame))
        on_frame(speech.frames, speech.frames)
    return speech


@contextlib.contextmanager
def book_bar() -> Iterator[Callable[[LongWork], None]]:
    """Yield a callback that shows the progress of a book or a training, and the time left, on stderr."""
    line = "{desc}, {percentage:.0f} %"
    with _bar(line, desc="starting", total=1000, bar_format="{desc} {percentage:3.0f} %|{bar}|") as bar:

        def on_progress(progress: LongWork) -> None:
            bar.set_description_str(str(progress), refresh=False)
            bar.update(round(1000 * progress.share) - bar.n)

        yield on_progress
        bar.update(bar.total - bar.n)
