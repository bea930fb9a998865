"""What `speak` gives back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .config import SAMPLE_RATE

END_OF_SPEECH = "end of speech"


@dataclass(frozen=True)
class SpokenTurn:
    """What one speaker said at a time, and where it lies in the sound: samples start to stop."""

    speaker: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class SpeechResult:
    """Speech and how it came about."""

    wav: torch.Tensor  # [T] float32, 24 kHz, host
    codes: torch.Tensor  # [T, K] int64, host
    elapsed: float  # seconds of work, model already open
    chunks: int  # pieces the text was split into
    stopped: str  # why it ended, in plain words
    warnings: tuple[str, ...] = ()
    how: str = ""  # what decoded it: kernels and executor, in plain words
    turns: tuple[SpokenTurn, ...] = ()  # in order; one where nobody else speaks
    reused: int = 0  # chunks of a dialogue that had been said before

    @property
    def complete(self) -> bool:
        """Whether every chunk ended by itself."""
        return self.stopped == END_OF_SPEECH

    @property
    def frames(self) -> int:
        return len(self.codes)

    @property
    def seconds(self) -> float:
        """Seconds of audio, pauses included."""
        return len(self.wav) / SAMPLE_RATE

    @property
    def frames_per_second(self) -> float:
        return self.frames / self.elapsed if self.elapsed else 0.0

    @property
    def rtf(self) -> float:
        """Seconds of work a second of audio; below 1 is faster than real time."""
        return self.elapsed / self.seconds if self.frames else 0.0
