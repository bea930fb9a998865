"""Progress bars for speech in the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from tqdm import tqdm

from ..book.report import BookProgress
from ..dubbing.speak import CueSpeech
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener

Speech = TypeVar("Speech", SpeechResult, CueSpeech)


def with_bar(speak: Callable[..., Speech]) -> Speech:
    """Return `speak(listener=...)`, showing its frames on stderr."""
    with tqdm(desc="speaking", unit="frame", total=0) as bar:

        def on_frame(done: int, expected: int) -> None:
            bar.total = expected
            bar.update(done - bar.n)

        speech = speak(listener=Listener(on_frame))
        on_frame(speech.frames, speech.frames)
    return speech


@contextlib.contextmanager
def book_bar() -> Iterator[Callable[[BookProgress], None]]:
    """Yield a callback that shows a book's progress and the time left on stderr."""
    with tqdm(total=1000, bar_format="{desc} {percentage:3.0f} %|{bar}|") as bar:

        def on_progress(progress: BookProgress) -> None:
            bar.set_description_str(str(progress), refresh=False)
            bar.update(round(1000 * progress.share) - bar.n)

        yield on_progress
        bar.update(bar.total - bar.n)
