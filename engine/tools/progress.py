"""Speech with a progress bar in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tqdm import tqdm

from ..dubbing.speak import CueSpeech
from ..result import SpeechResult

Speech = TypeVar("Speech", SpeechResult, CueSpeech)


def with_bar(speak: Callable[..., Speech]) -> Speech:
    """What `speak(on_frame=...)` says, with a bar of its frames on stderr."""
    with tqdm(desc="speaking", unit="frame", total=0) as bar:

        def on_frame(done: int, expected: int) -> None:
            bar.total = expected
            bar.update(done - bar.n)

        speech = speak(on_frame=on_frame)
        on_frame(speech.frames, speech.frames)
    return speech
