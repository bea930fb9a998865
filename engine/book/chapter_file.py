"""A chapter's sound and subtitles: the speech of several turns, cut into what is appended to their files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np
import torch

from ..audio.bed import Bed
from ..audio.mastering import Mastered, Target
from ..audio.pcm import HIGHEST, to_int16
from ..core.config import SAMPLE_RATE
from ..files.whole_file import replacing
from ..prompt.cues import Cue
from ..speech.result import DoubtfulWords, SpeechResult
from ..speech.subtitles import cues_of
from ..words.cues import sentences_of, words_by_turn
from ..words.word import Word, moved
from .sound_file import Tags, open_sound

_PIECE = SAMPLE_RATE * 10  # samples mixed at a time
_LEAD, _TAIL = 0.5, 1.0  # seconds of silence at a chapter's start and end, as audiobook shops require


Music = tuple[torch.Tensor, float]


class TurnSpeech(NamedTuple):
    """A turn's speech. Cues, words and doubts are timed from its start. checked: for each chunk, if its words were."""

    gap: float  # seconds of silence before it
    wav: torch.Tensor  # [n]
    cues: list[Cue]
    words: list[Word]
    doubts: list[DoubtfulWords]
    checked: list[bool]


def parts_of(speech: SpeechResult, tail: float, words: Sequence[Word] | None) -> list[TurnSpeech]:
    """Return a part for each turn. tail: silence requested before the first. words: those of the speech, if wanted."""
    stops = [0, *(turn.stop for turn in speech.turns)]
    gaps = [(turn.start - stop) / SAMPLE_RATE for turn, stop in zip(speech.turns, stops, strict=False)]
    gaps[0] += tail
    by_turn = [[]] * len(gaps) if words is None else words_by_turn(speech, words)
    parts = []
    for number, (gap, timed) in enumerate(zip(gaps, by_turn, strict=True)):
        own = speech.of_turn(number)
        cues = cues_of(own) if words is None else sentences_of(own, timed)
        parts.append(TurnSpeech(gap, own.wav, cues, timed, [*own.doubts], own.checked))
    return parts


class ChapterFile:
    """Appends turns; `finish` gives the file its name. Leaving the context before discards what was written.

    path: the sound's. target: loudness of the whole file. music: under the speech, [1, n] at SAMPLE_RATE, and the dB by
    which it is lowered. With one of them the sound waits in a temporary file beside it. loudness: what was reached, for
    users. Raises OSError.
    """

    def __init__(self, path: Path, kind: str, tags: Tags, target: Target | None = None, music: Music | None = None):
        self._stack, self._target, self._music, self.loudness = contextlib.ExitStack(), target, music, ""
        self._spans: list[tuple[float, float]] = []  # of the turns, in seconds
        self._samples = 0  # so far
        self.cues: list[Cue] = []
        self.words: list[Word] = []
        self.doubts: list[DoubtfulWords] = []
        self.checked: list[bool] = []
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(replacing(path))
            self._file = open_sound(partial, kind, tags)
            stack.callback(self._file.close)
            waits = target is not None or music is not None
            self._waiting = stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) if waits else None
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
        self.checked += turn.checked
        self._write(to_int16(turn.wav).numpy())
        self._spans.append((begin, self.seconds))

    def finish(self) -> None:
        self._silence(_TAIL)
        if self._waiting is not None:
            self._write_waiting(self._waiting)
        self._stack.close()

    def _write_waiting(self, waiting: IO[bytes]):
        """Write the sound that has waited, with music and at its loudness."""
        bed = Bed(self._music[0], SAMPLE_RATE, self._spans, self._samples, self._music[1]) if self._music else None

        def read(start: int, stop: int) -> torch.Tensor:
            waiting.seek(2 * start)
            samples = np.frombuffer(waiting.read(2 * (stop - start)), np.int16)
            wav = torch.from_numpy(samples.astype(np.float32))[None] / HIGHEST
            return wav if bed is None else wav + bed.piece(start, stop)

        if self._target is None:
            mastered, pieces = "", (read(at, min(at + _PIECE, self._samples)) for at in range(0, self._samples, _PIECE))
        else:
            mastered = Mastered(read, self._samples, SAMPLE_RATE, self._target)
            pieces = mastered.pieces()
        for piece in pieces:
            self._file.write(to_int16(piece[0]).numpy())
        self.loudness = str(mastered)

    def _silence(self, seconds: float):
        self._write(np.zeros(round(seconds * SAMPLE_RATE), np.int16))

    def _write(self, samples: np.ndarray):
        if self._waiting is None:
            self._file.write(samples)
        else:
            self._waiting.write(samples.tobytes())
        self._samples += len(samples)
