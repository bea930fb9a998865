"""An engine in a process of its own, and what it tells of its sessions."""

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

_PROGRESS = 0.2  # seconds between two reports of progress alone


class About(NamedTuple):
    """Identity of a worker: its model's fingerprint, what sort of device it has, and which process of which machine."""

    fingerprint: str
    kind: str
    machine: str
    process: int


class SequenceNews(NamedTuple):
    """News of the sequence of that number. codes [T, K]: of one that is whole; None before, or with an error."""

    number: int
    frames: int
    wav: torch.Tensor
    is_last: bool
    codes: torch.Tensor | None
    ended: bool
    error: BaseException | None


class News(NamedTuple):
    """News of a session: its sequences, voices made by number, how many sequences it could still begin, how
    many it has received so far, and how it decodes.
    """

    parts: list[SequenceNews]
    voices: list[tuple[int, Voice | BaseException]]
    room: int
    received: int
    report: SessionReport


class Unfit(NamedTuple):
    """The worker's device has no room, and why."""

    why: str


class Orders(NamedTuple):
    """Orders for a session, by numbers: decode, drop, make voices of clips, or end."""

    sequences: tuple[tuple[int, Sequence], ...] = ()
    drops: tuple[int, ...] = ()
    clips: tuple[tuple[int, ReferenceClip], ...] = ()
    is_end: bool = False


class Worker:
    """An engine that decodes sessions; `give` is called by other threads than `decode`."""

    def __init__(self, config: EngineConfig):
        self._engine = Engine(config)
        self._orders: dict[int, deque[Orders]] = {}  # by session, since they may come before it has begun
        self._changed = threading.Condition()

    def open(self) -> About:
        """Load the model, unless that has been done. Raises HiggsError as `Engine.open` does."""
        self._engine.open()
        return About(self._engine.fingerprint, self._engine.kind, platform.node(), os.getpid())

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None, name: str) -> Voice:
        """As `Engine.encode_voice`; waits for the session that runs."""
        return self._engine.encode_voice(wav, sample_rate, transcript, name)

    def give(self, session: int, orders: Orders) -> None:
        """Tell a session what to do."""
        with self._changed:
            self._orders.setdefault(session, deque()).append(orders)
            self._changed.notify_all()

    def decode(self, session: int, stage: Stage) -> Iterator[News | Unfit]:
        """Yield what a session says until it is told to end. Raises HiggsError if other workers would fail as well."""
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
    """Numbers of a session's sequences, and what has not been told yet."""

    def __init__(self, session: DeviceSession):
        self._session, self._received, self._told_at = session, 0, 0.0
        self._sequences: dict[int, Sequence] = {}
        self._numbers: dict[Sequence, int] = {}
        self._parts: list[SequenceNews] = []
        self._voices: list[tuple[int, Voice | BaseException]] = []

    def obey(self, many: list[Orders]) -> bool:
        """Do what was ordered -> whether the session should end."""
        for orders in many:
            for number, sequence in orders.sequences:
                self._received += 1
                self._sequences[number], self._numbers[sequence] = sequence, number
                self._session.submit(sequence)
            self._session.drop(*(self._sequences[number] for number in orders.drops if number in self._sequences))
            for number, clip in orders.clips:
                made: Future[Voice] = self._session.encode_voice(clip)
                self._voices.append((number, made.exception() or made.result()))
        return any(orders.is_end for orders in many)

    def hear(self, heard: list[Heard]) -> None:
        for sequence, wav, is_last, _ in heard:
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
        """True if there is sound or an end, or progress that was not told for a while."""
        is_news = self._voices or any(len(parts.wav) or parts.is_last for parts in self._parts)
        return bool(is_news) or time.monotonic() - self._told_at > _PROGRESS

    def news(self) -> News:
        """Return what has not been told."""
        self._told_at = time.monotonic()
        news = News(self._parts, self._voices, self._session.room, self._received, self._session.report)
        self._parts, self._voices = [], []
        return news
