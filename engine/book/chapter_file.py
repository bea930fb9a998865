"""Writes a chapter's sound and subtitles."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from ..audio.pcm import to_int16
from ..core.config import SAMPLE_RATE
from ..files.whole_file import replacing
from ..speech.result import DoubtfulWords
from ..speech.subtitles import Cue
from ..words.word import Word, moved
from .parts import TurnSpeech
from .sound_file import Tags, open_sound

_LEAD, _TAIL = 0.5, 1.0  # seconds of silence at a chapter's start and end, as audiobook shops require


class ChapterFile:
    """Appends turns; `finish` gives the file its name. Leaving the context before discards what was written.

    path: the sound's. Raises OSError.
    """

    def __init__(self, path: Path, kind: str, tags: Tags):
        self._stack = contextlib.ExitStack()
        self._samples = 0  # so far
        self.cues: list[Cue] = []
        self.words: list[Word] = []
        self.doubts: list[DoubtfulWords] = []
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(replacing(path))
            self._file = open_sound(partial, kind, tags)
            stack.callback(self._file.close)
            self._stack = stack.pop_all()
        self._silence(_LEAD)

    def __enter__(self) -> ChapterFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # from closing a discarded file on a full disk
            self._stack.__exit__(kind, error, trace)

    @property
    def seconds(self) -> float:
        return self._samples / SAMPLE_RATE

    def append(self, gap: float, turn: TurnSpeech) -> None:
        """Append a turn after `gap` seconds of silence."""
        self._silence(gap)
        begin = self.seconds
        self.cues += [replace(cue, start=begin + cue.start, stop=begin + cue.stop) for cue in turn.cues]
        self.words += moved(turn.words, begin)
        self.doubts += [doubt.moved(begin) for doubt in turn.doubts]
        self._write(to_int16(turn.wav).numpy())

    def finish(self) -> None:
        self._silence(_TAIL)
        self._stack.close()

    def _silence(self, seconds: float):
        self._write(np.zeros(round(seconds * SAMPLE_RATE), np.int16))

    def _write(self, samples: np.ndarray):
        self._file.write(samples)
        self._samples += len(samples)
