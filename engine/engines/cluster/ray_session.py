"""Session on the workers of a Ray cluster, which replaces dead workers."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.errors import HiggsError
from ...core.sequence import Sequence
from ...speech.decoder import Heard, ReferenceClip, SessionReport, Stage
from ...voice.voice import Voice
from ..device_pool import described
from ..pool import Member, Pool
from ..pool_session import PoolSession
from .seats import Seat, Seats, own_error, reason_of
from .worker import News, Orders, Unfit

_LOOK = 0.2  # seconds between checks for the end of the session while waiting for a worker


@dataclass(eq=False)
class _Stream:
    """Traffic with a worker's session, by numbers."""

    copies: dict[int, Sequence] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    room: int = 0  # sequences it could start, as last reported
    sent: int = 0
    received: int = 0  # of those sent, as last reported
    voices: dict[int, tuple[Future[Voice], ReferenceClip]] = field(default_factory=dict)


class RayPoolSession(PoolSession):
    """A `Session` on workers. A thread follows each worker, and then the one Ray restarts in its place."""

    def __init__(self, seats: Seats, stage: Stage, number: int):
        super().__init__(Pool([]))
        self._workers, self._number = seats, number
        count = max(1, len(seats))
        self._stage = stage._replace(rows=math.ceil(stage.rows / count), shared=count > 1 and not stage.alone)
        self._streams: dict[Member, tuple[Seat, _Stream]] = {}
        self._reports: dict[Member, tuple[str, SessionReport]] = {}  # device kind and report
        self._notes: list[str] = []
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
                seat, stream = self._streams[member]
                numbers = [number for number, one in stream.copies.items() if one is copy]
                self._give(seat, Orders(drops=tuple(numbers)))

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        made: Future[Voice] = Future()
        with self._changed:
            self._begin()
            self._encode(made, clip)
        return made

    def _encode(self, made: Future[Voice], clip: ReferenceClip):
        """Encode a clip on the least busy worker. If it dies, another one does it."""
        ready = [(seat, stream) for member, (seat, stream) in self._streams.items() if member.error is None]
        if not ready:
            made.set_exception(self._workers.none_left())
            return
        seat, stream = min(ready, key=lambda one: len(one[1].copies))
        number = next(stream.numbers)
        stream.voices[number] = made, clip
        self._give(seat, Orders(clips=((number, clip),)))

    def _start(self, members: list[Member]) -> None:
        """Begin, and send what the members may decode: nothing else feeds one that is idle."""
        self._begin()
        for member in self._pool.left:
            self._feed(member)

    def _begin(self):
        if not self._has_started:
            self._has_started = True
            for seat in self._workers.ready:
                self._join(seat)
            for seat in self._workers.all:
                if not seat.is_gone:
                    self._run("worker", self._work, seat)

    def _join(self, seat: Seat) -> None:
        assert seat.about
        lost, seat.member = seat.member, Member(seat.name, seat.about.kind)
        self._streams[seat.member] = seat, _Stream()
        self._decide(self._pool.join, seat.member, lost)

    def _end(self) -> BaseException | None:
        if not all(seat.is_gone for seat in self._workers.all):
            return None
        if self._unfit:
            return HiggsError(f"No GPU in the Ray cluster can run the model: {self._unfit}. Choose --dtype int8.")
        return self._workers.none_left()

    def _work(self, seat: Seat):
        """Follow a seat's worker and its replacements, in a thread."""
        try:
            while not (self._closed or seat.is_gone) and self._admitted(seat):
                self._follow(seat)
        except HiggsError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise

    def _admitted(self, seat: Seat) -> bool:
        """Wait for the seat's worker. True if it takes part."""
        while seat.opening is not None and not self._workers.admit(seat, _LOOK):
            if self._closed:
                return False
        if seat.about is None:
            self._notes.append(f"A worker could not be started again.{seat.reason}")
            self._tell(self._pool.give_up, seat.member) if seat.member else self.wake()
            return False
        with self._changed:
            if seat.member is None or seat.member.error is not None:
                self._join(seat)
        return True

    def _follow(self, seat: Seat):
        """Read one worker's stream until it ends or dies."""
        member = seat.member
        assert member
        stream = seat.actor.decode.options(num_returns="streaming").remote(self._number, self._stage)
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
        seat.reason = f" Ray's reason: {reason_of(error)}"
        self._notes.append(f"{seat.name} died; the other workers took over its part.{seat.reason}")
        seat.open()
        self._leave(member, HiggsError("died."), True)

    def _dismiss(self, seat: Seat, member: Member, why: str):
        """End a worker whose device lacks memory."""
        self._unfit, seat.about = why, None
        self._notes.append(why)
        ray.kill(seat.actor)
        self._leave(member, HiggsError(why), False)

    def _leave(self, member: Member, error: HiggsError, returns: bool):
        def leave() -> list[Heard]:
            heard = self._pool.lose(member, error, returns)
            _, stream = self._streams[member]
            for order in stream.voices.values():
                self._encode(*order)
            return heard

        self._decide(leave)

    def _take_news(self, member: Member, news: News):
        _, stream = self._streams[member]
        self._reports[member] = member.kind, news.report
        for part in news.parts:
            copy = stream.copies[part.number]
            copy.num_frames = part.frames
            if part.is_last:
                del stream.copies[part.number]
                copy.error = part.error
                if part.codes is not None:
                    copy.fill(part.codes, part.ended)
            self._tell(self._pool.hear, member, Heard(copy, part.wav, part.is_last))
        for number, voice in news.voices:
            made, _ = stream.voices.pop(number)
            made.set_exception(voice) if isinstance(voice, BaseException) else made.set_result(voice)
        with self._changed:
            stream.room, stream.received = news.room, news.received
            self._feed(member)

    def _feed(self, member: Member):
        """Send sequences up to a worker's free room."""
        seat, stream = self._streams[member]
        copies = self._pool.take(member, stream.room - (stream.sent - stream.received))
        if copies:
            numbered = [(next(stream.numbers), copy) for copy in copies]
            stream.copies |= dict(numbered)
            stream.sent += len(copies)
            self._give(seat, Orders(tuple(numbered)))

    def _give(self, seat: Seat, orders: Orders):
        with contextlib.suppress(RayError):  # died; its thread notices
            seat.actor.give.remote(self._number, orders)

    def close(self) -> None:
        """Tell the workers to end. Each thread ends with its worker's stream."""
        super().close()
        for member, (seat, stream) in self._streams.items():
            if member.error is None:
                self._give(seat, Orders(is_end=True))
            for made, _ in stream.voices.values():
                made.set_exception(HiggsError("The session ended before the voice was made. Try again."))
        for seat in self._workers.all:
            seat.member = None
