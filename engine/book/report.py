"""Narration's interface to the engine, its progress, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..audio.mastering import AS_IS
from ..core.config import BOOK_FORMATS, SamplingParams
from ..prompt.script import Turn
from ..speech.kept_codes import SequenceStore
from ..speech.result import DoubtfulWords, Retried, SpeechResult, duration
from ..speech.speech_input import Listener
from ..voice.voice import Voice
from ..words.word import Word


class Narrator(Protocol):
    """An engine, or several, that can speak a book."""

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
class BookSettings:
    """How a book is spoken and written. kind: one of BOOK_FORMATS. even: equalise the loudness of turns.

    words: the speaker's `words`, to write a JSON file of them beside each sound. srt_words: most words of a subtitle
    cue, if `words` is given; 0: a cue per sentence. devices: number of them that speak together. loudness: that of each
    chapter, one of TARGETS. music: under each chapter, from its start: [1, n] at SAMPLE_RATE, and the dB by which it is
    lowered during speech.
    """

    scene: str | None = None
    kind: str = BOOK_FORMATS[0]
    even: bool = True
    words: Callable[[SpeechResult], tuple[Word, ...]] | None = None
    srt_words: int = 0
    devices: int = 1
    loudness: str = AS_IS
    music: tuple[torch.Tensor, float] | None = None


@dataclass(frozen=True)
class BookProgress:
    """share: estimated part of the book done, 0 to 1. left: seconds of work, or None while unknown."""

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
    """An existing file. made: written in this run. loudness: of a chapter made at a target, for users."""

    name: str
    seconds: float
    made: bool
    loudness: str = ""

    def __str__(self) -> str:
        state = "made" if self.made else "unchanged"
        return f"{self.name}: {duration(self.seconds)}, {state}{'. ' if self.loudness else ''}{self.loudness}"


@dataclass(frozen=True)
class BookReport:
    folder: Path
    files: tuple[BookFile, ...]
    elapsed: float
    reused: int  # sequences spoken in an earlier run
    frames: int  # decoded in this run
    retried: tuple[Retried, ...]
    warnings: tuple[str, ...]
    how: str
    peak_bytes: int = 0  # peak GPU memory, including the model; 0 on a CPU
    doubts: tuple[tuple[str, DoubtfulWords], ...] = ()  # with their chapters; from a chapter's start
    outcome: str = ""  # of all speech, for users

    @property
    def seconds(self) -> float:
        return sum(file.seconds for file in self.files)

    @property
    def messages(self) -> list[str]:
        """Warnings, and the places in doubt, for users."""
        return [*self.warnings, *(f"{chapter}: {doubt}" for chapter, doubt in self.doubts)]

    @property
    def spoken_again(self) -> tuple[Retried, ...]:
        """Return the chunks with more than one attempt in this run."""
        return tuple(chunk for chunk in self.retried if len(chunk.flaws) > 1)
