"""Result of `speak`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..core.config import SAMPLE_RATE
from ..voice.voice import Voice

END_OF_SPEECH = "end of speech"
FLAWS = {  # what can be wrong with a take
    "limit": "it did not end",
    "long": "it was too long for its text",
    "short": "it was too short for its text",
    "repeat": "it repeated itself",
    "silence": "it fell silent",
    "level": "it was clipped or almost silent",
}
_QUOTED = 40  # characters of a chunk that are quoted


def quoted(text: str) -> str:
    """The beginning of a text in quotation marks, on one line."""
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= _QUOTED else f'"{text[:_QUOTED].rstrip()}..."'


def duration(seconds: float, digits: int = 1) -> str:
    """Seconds, minutes or hours, whichever is read at a glance. digits: decimals of seconds and minutes."""
    if seconds < 90:
        return f"{seconds:.{digits}f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.{digits}f} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def in_words(flaws: Iterable[str]) -> str:
    """Flaw of a take, as a clause."""
    return " and ".join(FLAWS[flaw] for flaw in flaws)


@dataclass(frozen=True)
class SpokenTurn:
    """A turn and its place in the sound: samples start to stop, empty if it has no word."""

    speaker: str
    text: str
    start: int
    stop: int
    frames: tuple[int, int] = (0, 0)  # and in the codes

    @property
    def is_spoken(self) -> bool:
        return self.stop > self.start


def join_turns(
    turns: Sequence[tuple[str, str]], numbers: Sequence[int], chunks: Sequence[SpokenTurn]
) -> tuple[SpokenTurn, ...]:
    """Chunks as turns; one without a chunk lies where the one before ends.

    turns: (speaker, text) of each. numbers: of each chunk, which turn it belongs to; rising.
    """
    own: dict[int, list[SpokenTurn]] = {}
    for number, chunk in zip(numbers, chunks, strict=True):
        own.setdefault(number, []).append(chunk)
    joined, at, frame = [], 0, 0
    for number, (speaker, text) in enumerate(turns):
        parts = own.get(number) or [SpokenTurn(speaker, text, at, at, (frame, frame))]
        at, frame = parts[-1].stop, parts[-1].frames[1]
        joined.append(SpokenTurn(speaker, text, parts[0].start, at, (parts[0].frames[0], frame)))
    return tuple(joined)


@dataclass(frozen=True)
class Retaken:
    """A chunk with a take that was bad."""

    chunk: int  # from 1
    text: str
    flaws: tuple[tuple[str, ...], ...]  # what was wrong with each take: names in FLAWS
    kept: int  # the take that is heard, from 1

    def __str__(self) -> str:
        why, takes = in_words(self.flaws[0]), len(self.flaws)
        return f"chunk {self.chunk}, {quoted(self.text)}: {why}; kept take {self.kept} of {takes}"


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
    turns: tuple[SpokenTurn, ...] = ()  # those that were given; one where nobody else speaks
    reused: int = 0  # chunks of a dialogue that had been said before
    retaken: tuple[Retaken, ...] = ()  # chunks that were spoken again, or should have been
    said: tuple[SpokenTurn, ...] = ()  # each chunk, as its turn is told
    voices: Mapping[str, Voice] = field(default_factory=dict)  # by speaker, those that were made of speech among them
    peak_bytes: int = 0  # of a GPU's memory, the model's own among them; 0 on a CPU

    @property
    def complete(self) -> bool:
        """True if every chunk ended by itself."""
        return self.stopped == END_OF_SPEECH

    @property
    def spoken_again(self) -> tuple[Retaken, ...]:
        """Chunks of which there was more than one take."""
        return tuple(chunk for chunk in self.retaken if len(chunk.flaws) > 1)

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
