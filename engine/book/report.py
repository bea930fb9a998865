"""Narrator protocol, progress and result of a book."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core.config import SamplingParams
from ..prompt.script import Turn
from ..speech.kept_codes import SequenceStore
from ..speech.result import Retaken, SpeechResult, duration
from ..speech.speech_input import Listener
from ..voice.voice import Voice


class Narrator(Protocol):
    """One or several engines, as narration uses them."""

    @property
    def fingerprint(self) -> str: ...

    def speak_turns(
        self,
        turns: list[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams,
        scene: str | None,
        listener: Listener,
        *,
        reuse: SequenceStore,
        even: bool,
    ) -> SpeechResult: ...


@dataclass(frozen=True)
class BookProgress:
    """share: of the book, by estimate, 0 to 1. left: seconds of work, None while that is not known."""

    share: float
    left: float | None
    chapter: int  # from 1
    chapters: int
    title: str

    def __str__(self) -> str:
        left = "" if self.left is None else f", {duration(self.left, 0)} left"
        return f"chapter {self.chapter} of {self.chapters}{left}"


@dataclass(frozen=True)
class BookFile:
    """A file that is there now; made: in this run."""

    name: str
    seconds: float
    made: bool


@dataclass(frozen=True)
class BookReport:
    """Result of narrating a book."""

    folder: Path
    files: tuple[BookFile, ...]
    elapsed: float
    reused: int  # sequences that an earlier run had spoken
    frames: int  # that were decoded now
    retaken: tuple[Retaken, ...]
    warnings: tuple[str, ...]
    how: str
    peak_bytes: int = 0  # of a GPU's memory at most, the model's own among them; 0 on a CPU

    @property
    def seconds(self) -> float:
        """Of the whole book."""
        return sum(file.seconds for file in self.files)

    @property
    def spoken_again(self) -> tuple[Retaken, ...]:
        """Chunks of which there was more than one take in this run."""
        return tuple(chunk for chunk in self.retaken if len(chunk.flaws) > 1)
