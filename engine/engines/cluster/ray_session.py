"""Session on the workers of a Ray cluster, which replaces dead workers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.errors import HiggsError
from ...core.sequence import Sequence
from ...speech.decoder import Heard, ReferenceClip, SessionReport, Stage
from ...voice.voice import Voice
from ..device_pool import described
from ..pool.pool import Member, Pool
from ..pool.session import PoolSession
from .seats import Seat, Seats, own_error
from .worker import News, Orders, Unfit

_LOG = logging.getLogger("higgs_tts.ray")
_END = 10.0  # seconds that a worker may take to end its stream
_LOOK = 0.2  # seconds between checks for the end of the session while waiting for a worker


@dataclass(eq=False)
class _Stream:
    """Traffic with a worker's session, by numbers. actor: the worker, which a seat may have replaced since."""

    actor: Any
    copies: dict[int, Sequence] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    room: int = 0  # sequences it could start, as last reported
    sent: int = 0
    received: int = 0  # of those sent, as last reported
    voices: dict[int, tuple[Future[Voice], ReferenceClip]] = field(default_factory=dict)


class RayPoolSession(PoolSession):
    """A `Session` on workers. A thread follows each worker, and then the one that takes its place."""

    def __init__(self, seats: Seats, stage: Stage, number: int):
        super().__init__(Pool([]))
        self._workers, self._number = seats, number
        count = max(1, len(seats))
        self._stage = stage._replace(rows=math.ceil(stage.rows / count), shared=count > 1 and not stage.alone)
        self._streams: dict[Member, _Stream] = {}
        self._reports: dict[Member, tuple[str, SessionReport]] = {}  # device kind and report
        self._notes: list[str] = []
        self._clips: deque[tuple[Future[Voice], ReferenceClip]] = deque()  # that wait for a worker
        self._unfit = ""
        self._has_started = False

    @property
    def report(self) -> SessionReport:
        used = [self._reports[member] for member in self._pool.members if member.spoken and member in self._reports]
        notes = [*(note for _, report in used for note in report.notes), *self._notes]
        peak = max([0, *(report.peak_bytes for _, report in used)])
        return SessionReport(described((kind, report.how) for kind, report in used), tuple(notes), peak)

    def drop(self, *sequences: Sequence) -> None:
        with self._changed:
            for member, copy in self._pool.drop(*sequences):
                stream = self._streams[member]
                numbers = [number for number, one in stream.copies.items() if one is copy]
                for number in numbers:
                    del stream.copies[number]
                self._give(stream, Orders(drops=tuple(numbers)))

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        made: Future[Voice] = Future()
        with self._changed:
            self._begin()
            self._encode(made, clip)
        return made

    def _unmade(self) -> list[tuple[Future[Voice], ReferenceClip]]:
        """Return the clips that are not voices yet."""
        return [*self._clips, *(order for stream in self._streams.values() for order in stream.voices.values())]

    @property
    def _is_done(self) -> bool:
        with self._changed:
            return self._pool.is_done and not self._unmade()

    def _encode(self, made: Future[Voice], clip: ReferenceClip):
        """Encode a clip on the least busy worker, or on the first one that starts. If it dies, another one does it."""
        ready = [stream for member, stream in self._streams.items() if member.error is None]
        if not ready:
            self._clips.append((made, clip))
            return
        stream = min(ready, key=lambda one: len(one.copies))
        number = next(stream.numbers)
        stream.voices[number] = made, clip
        self._give(stream, Orders(clips=((number, clip),)))

    def _start(self, members: list[Member]) -> None:
        """Begin, and send what the members may decode: nothing else feeds one that is idle."""
        self._begin()
        for member in self._pool.left:
            self._feed(member)

    def _begin(self):
        if not self._has_started:
            self._has_started = True
            self._workers.call()
            for seat in self._workers.all:
                self._run("worker", self._work, seat)

    def _join(self, seat: Seat) -> None:
        assert seat.about
        lost, member = seat.member, Member(seat.name, seat.about.kind)
        seat.member, self._streams[member] = member, _Stream(seat.actor)
        while self._clips:
            self._encode(*self._clips.popleft())
        self._decide(self._pool.join, member, lost)

    def _end(self) -> BaseException | None:
        if not all(seat.is_gone for seat in self._workers.all):
            return None
        if self._unfit:
            return HiggsError(f"No GPU in the Ray cluster can run the model: {self._unfit}. Choose --dtype int8.")
        return self._workers.none_left()

    def _work(self, seat: Seat):
        """Follow a seat's worker and its replacements, in a thread."""
        try:
            while self._admitted(seat):
                self._follow(seat)
        except HiggsError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise

    def _admitted(self, seat: Seat) -> bool:
        """Wait for the seat's worker. True if it takes part."""
        try:
            while not (self._closed or self._workers.admit(seat, _LOOK)):
                pass
        except HiggsError as error:
            seat.give_up(f" {error}")
        with self._changed:
            if self._closed:
                return False
            if seat.about is not None:
                self._join(seat)
                return True
            self._note(f"A worker could not be started.{seat.reason}")
            self._tell(self._pool.give_up, seat.member) if seat.member else self.wake()
            while self._clips and all(seat.is_gone for seat in self._workers.all):
                self._clips.popleft()[0].set_exception(self._workers.none_left())
        return False

    def _note(self, note: str):
        self._notes.append(note)
        _LOG.warning(note)

    def _follow(self, seat: Seat):
        """Read one worker's stream until it ends or dies."""
        member = seat.member
        with self._changed:
            if self._closed:  # nobody would end the stream
                return
            assert member
            decode = self._streams[member].actor.decode.options(num_returns="streaming")
            stream = decode.remote(self._number, self._stage)
        try:
            for promise in stream:
                news: News | Unfit = ray.get(promise)
                if isinstance(news, Unfit):
                    self._dismiss(seat, member, news.why)
                    return
                self._take_news(member, news)
        except RayTaskError as error:
            raise own_error(error) from None
        except RayError as error:
            if not self._closed:
                self._lose(seat, member, error)

    def _lose(self, seat: Seat, member: Member, error: RayError):
        name = seat.name
        with self._changed:
            seat.died(error)
        self._note(f"{name} died; the other workers took over its part.{seat.reason}")
        self._leave(member, HiggsError("died."), True)

    def _dismiss(self, seat: Seat, member: Member, why: str):
        """End a worker whose device lacks memory."""
        self._unfit = why
        seat.give_up(f" {why}.")
        self._note(why)
        self._leave(member, HiggsError(why), False)

    def _leave(self, member: Member, error: HiggsError, returns: bool):
        def leave() -> list[Heard]:
            heard = self._pool.lose(member, error, returns)
            stream = self._streams[member]
            while stream.voices:
                self._encode(*stream.voices.popitem()[1])
            return heard

        self._decide(leave)

    def _take_news(self, member: Member, news: News):
        stream = self._streams[member]
        self._reports[member] = member.kind, news.report
        for part in news.parts:
            with self._changed:
                copy = stream.copies.pop(part.number, None) if part.is_last else stream.copies.get(part.number)
            if copy is None:  # dropped
                continue
            copy.num_frames = part.frames
            if part.is_last:
                copy.error = part.error
                if part.codes is not None:
                    copy.fill(part.codes, part.ended)
            self._tell(self._pool.hear, member, Heard(copy, part.wav, part.is_last))
        for number, voice in news.voices:
            with self._changed:
                made, _ = stream.voices.pop(number)
            made.set_exception(voice) if isinstance(voice, BaseException) else made.set_result(voice)
        with self._changed:
            stream.room, stream.received = news.room, news.received
            self._feed(member)

    def _feed(self, member: Member):
        """Send sequences up to a worker's free room."""
        stream = self._streams[member]
        copies = self._pool.take(member, stream.room - (stream.sent - stream.received))
        if copies:
            numbered = [(next(stream.numbers), copy) for copy in copies]
            stream.copies |= dict(numbered)
            stream.sent += len(copies)
            self._give(stream, Orders(tuple(numbered)))

    def _give(self, stream: _Stream, orders: Orders):
        with contextlib.suppress(RayError):  # died; its thread notices
            stream.actor.give.remote(self._number, orders)

    def close(self) -> None:
        """Tell the workers to end, and wait for the threads: in one that outlived Ray, Ray would start again."""
        super().close()
        for member, stream in self._streams.items():
            if member.error is None:
                self._give(stream, Orders(is_end=True))
        for thread in self._threads:
            thread.join(_END)
        for made, _ in self._unmade():
            made.set_exception(HiggsError("The session ended before the voice was made. Try again."))
        for seat in self._workers.all:
            seat.member = None
