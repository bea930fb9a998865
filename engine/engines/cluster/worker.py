"""Worker process with an engine, and the messages it exchanges."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

import torch

from ...core.config import EngineConfig
from ...core.sequence import Sequence
from ...speech.decoder import Heard, ReferenceClip, SessionReport, Stage
from ...voice.clip import Wave
from ...voice.voice import Voice
from ..device_decoder import DeviceSession, TooSmall
from ..engine import Engine

_PROGRESS = 0.2  # seconds between reports that contain only progress


class About(NamedTuple):
    """Identity of a worker: model fingerprint, device kind, machine and process."""

    fingerprint: str
    kind: str
    machine: str
    process: int


class SequenceNews(NamedTuple):
    """Progress of one sequence. codes [T, K]: set once complete; None before, or with an error."""

    number: int
    frames: int
    wav: torch.Tensor
    is_last: bool
    codes: torch.Tensor | None
    ended: bool
    error: BaseException | None


class News(NamedTuple):
    """Progress of a session.

    parts: per sequence. voices: encoded voices by number. room: number of sequences it could still start. received:
    number of sequences received so far. report: kernels, warnings and peak memory.
    """

    parts: list[SequenceNews]
    voices: list[tuple[int, Voice | BaseException]]
    room: int
    received: int
    report: SessionReport


class Unfit(NamedTuple):
    """Report that the worker's device lacks memory, with the reason."""

    why: str


class Orders(NamedTuple):
    """Commands for a session, by number: decode, drop, encode clips as voices, or end."""

    sequences: tuple[tuple[int, Sequence], ...] = ()
    drops: tuple[int, ...] = ()
    clips: tuple[tuple[int, ReferenceClip], ...] = ()
    is_end: bool = False


class Worker:
    """Decodes sessions with an engine. `give` is called from other threads than `decode`."""

    def __init__(self, config: EngineConfig):
        self._engine = Engine(config)
        self._orders: dict[int, deque[Orders]] = {}  # by session; may arrive before it starts
        self._changed = threading.Condition()

    def open(self) -> About:
        """Load the model if not loaded. Raises HiggsError as `Engine.open` does."""
        self._engine.open()
        return About(self._engine.fingerprint, self._engine.kind, platform.node(), os.getpid())

    def is_open(self) -> bool:
        """True if the model is loaded."""
        return self._engine.opened

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None, name: str) -> Voice:
        """Encode a voice, like `Engine.encode_voice`. Waits for a running session."""
        return self._engine.encode_voice(wav, sample_rate, transcript, name)

    def give(self, session: int, orders: Orders) -> None:
        """Queue commands for a session."""
        with self._changed:
            self._orders.setdefault(session, deque()).append(orders)
            self._changed.notify_all()

    def decode(self, session: int, stage: Stage) -> Iterator[News | Unfit]:
        """Yield a session's progress until it is told to end. Raises HiggsError if other workers would fail too."""
        where = f"The {self._engine.kind} of {platform.node()}"
        try:
            with torch.inference_mode(), self._engine.decoding() as decoder, decoder.session(stage) as decoding:
                yield from self._follow(session, decoding)
        except TooSmall as error:
            yield Unfit(f"{where} {error}")
        except torch.cuda.OutOfMemoryError:
            yield Unfit(f"{where} ran out of memory")
        finally:
            self._orders.pop(session, None)

    def _follow(self, number: int, session: DeviceSession) -> Iterator[News]:
        state = _WorkerState(session)
        while True:
            yield state.news()
            if state.obey(self._next(number, wait=True)):
                return
            for heard in session:
                state.hear(heard)
                if state.is_worth_telling:
                    yield state.news()
                if state.obey(self._next(number, wait=False)):
                    return

    def _next(self, session: int, wait: bool) -> list[Orders]:
        with self._changed:
            orders = self._orders.setdefault(session, deque())
            if wait:
                self._changed.wait_for(lambda: orders)
            found = list(orders)
            orders.clear()
        return found


class _WorkerState:
    """Numbers of a session's sequences, and unreported progress."""

    def __init__(self, session: DeviceSession):
        self._session, self._received, self._told_at = session, 0, 0.0
        self._sequences: dict[int, Sequence] = {}
        self._numbers: dict[Sequence, int] = {}
        self._parts: list[SequenceNews] = []
        self._voices: list[tuple[int, Voice | BaseException]] = []

    def obey(self, many: list[Orders]) -> bool:
        """Execute commands. True if the session should end."""
        for orders in many:
            for number, sequence in orders.sequences:
                self._received += 1
                sequence.checked = False  # no verdict is sent back
                self._sequences[number], self._numbers[sequence] = sequence, number
                self._session.submit(sequence)
            for number in orders.drops:
                if sequence := self._sequences.pop(number, None):
                    del self._numbers[sequence]
                    self._session.drop(sequence)
            for number, clip in orders.clips:
                made: Future[Voice] = self._session.encode_voice(clip)
                self._voices.append((number, made.exception() or made.result()))
        return any(orders.is_end for orders in many)

    def hear(self, heard: list[Heard]) -> None:
        for sequence, wav, is_last, *_ in heard:
            if isinstance(sequence.error, torch.cuda.OutOfMemoryError):
                raise sequence.error
            number, is_whole = self._numbers[sequence], is_last and sequence.error is None
            codes = torch.cat(sequence.codes) if is_whole else None
            end = codes, sequence.ended, sequence.error
            self._parts.append(SequenceNews(number, sequence.num_frames, wav, is_last, *end))
            if is_last:
                del self._sequences[self._numbers.pop(sequence)]

    @property
    def is_worth_telling(self) -> bool:
        """True if there is a voice, new audio or a finished sequence, or the last report was a while ago."""
        is_news = self._voices or any(len(part.wav) or part.is_last for part in self._parts)
        return bool(is_news) or time.monotonic() - self._told_at > _PROGRESS

    def news(self) -> News:
        """Return the unreported progress."""
        self._told_at = time.monotonic()
        news = News(self._parts, self._voices, self._session.room, self._received, self._session.report)
        self._parts, self._voices = [], []
        return news
