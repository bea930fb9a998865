"""Data-parallel engines of one checkpoint: one device and thread each, with a shared queue."""

from __future__ import annotations

import contextlib
import math
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from ..core.config import EngineConfig
from ..core.devices import devices_of
from ..core.errors import HiggsError
from ..core.sequence import Sequence as Decoded
from ..core.threads import one_thread
from ..speech.decoder import Answer, ReferenceClip, SessionReport, Stage, run_into
from ..speech.result import SpeechResult
from ..voice.clip import Wave
from ..voice.voice import Voice
from ..words.attention import Head
from ..words.word import Word
from .device_decoder import DeviceSession, TooSmall
from .engine import Engine
from .pool.pool import Member, Pool
from .pool.session import TICK, PoolSession
from .speech_api import SpeechAPI


def engine_of(config: EngineConfig) -> Engine | Engines:
    """Return an engine, or several if the device names more than one: "cuda:0,cuda:2", or "all GPUs"."""
    engines = [Engine(replace(config, device=device)) for device in devices_of(config.device)]
    return engines[0] if len(engines) == 1 else Engines(engines)


class Engines(SpeechAPI):
    """Speaks on all open engines. Prompts and warnings come from the first one's checkpoint.

    Output matches a single engine if all devices are the same model. If an engine runs out of memory or is closed, the
    others take over its unfinished chunks, and the result's warnings say so.
    """

    def __init__(self, engines: Sequence[Engine]):
        self._engines, self.planner = list(engines), engines[0].planner

    @property
    def devices(self) -> int:
        return sum(engine.opened for engine in self._engines)

    @property
    def kind(self) -> str:
        kinds = {engine.kind for engine in self._engines}
        return kinds.pop() if len(kinds) == 1 else ""

    def __enter__(self) -> Engines:
        with contextlib.ExitStack() as stack:
            for engine in self._engines:
                stack.enter_context(engine)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        return self._engines[0].encode_voice(wav, sample_rate, transcript, name)

    def heads(self) -> tuple[Head, ...]:
        return self._first_open.heads()

    def words(self, speech: SpeechResult) -> tuple[Word, ...]:
        return self._first_open.words(speech)

    @property
    def _first_open(self) -> Engine:
        return next((engine for engine in self._engines if engine.opened), self._engines[0])

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[DevicePool]:
        pool = DevicePool([engine for engine in self._engines if engine.opened])
        with one_thread():
            yield pool


class DevicePool:
    """Decoder over several engines. Raises HiggsError if none is open."""

    def __init__(self, engines: Sequence[Engine]):
        self._engines = list(engines)
        if not self._engines:
            raise HiggsError("The engine is not open. Open it before speaking.")

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[DevicePoolSession]:
        """Yield a session. Threads start with the first sequence. A lost engine is not used in later sessions."""
        session = DevicePoolSession(self._engines, stage)
        try:
            yield session
        finally:
            session.close()
            self._engines = session.left


class _InTurn:
    """Sets up members one after another. None decodes before all are ready.

    While one device captures, torch marks allocations on any device, and warns when they are freed. The fixed order
    prevents deadlock between two calls that each hold a device.
    """

    def __init__(self, count: int):
        self._count, self._made, self._changed = count, 0, threading.Condition()

    @contextlib.contextmanager
    def turn(self, number: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._made == number)
        try:
            yield
        finally:
            with self._changed:
                self._made += 1
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: self._made == self._count)


class DevicePoolSession(PoolSession):
    def __init__(self, engines: Sequence[Engine], stage: Stage):
        seats = min(len(engines), max(1, stage.rows))
        self._engines = {Member(engine.label, engine.kind): engine for engine in engines}
        super().__init__(Pool(self._engines, seats))
        self._stage = stage._replace(rows=math.ceil(stage.rows / seats), shared=seats > 1 and not stage.alone)
        self._sessions: list[tuple[Engine, DeviceSession]] = []
        self._drops: dict[Member, list[Decoded]] = {}
        self._questions: deque[tuple[Future, Callable[[Engine], object]]] = deque()

    @property
    def left(self) -> list[Engine]:
        return [self._engines[member] for member in self._pool.left]

    @property
    def report(self) -> SessionReport:
        reports = [(engine.kind, session.report) for engine, session in self._sessions]
        notes = [note for _, report in reports for note in report.notes]
        notes += [
            f"{member.label} {self._why(member)}; the other devices took over its part." for member in self._pool.lost
        ]
        how = described((kind, report.how) for kind, report in reports)
        return SessionReport(how, tuple(notes), max([0, *(report.peak_bytes for _, report in reports)]))

    def _why(self, member: Member) -> str:
        if isinstance(member.error, torch.cuda.OutOfMemoryError):
            return "ran out of memory"
        return "was unloaded" if self._engines[member].is_closing else str(member.error)

    def drop(self, *sequences: Decoded) -> None:
        with self._changed:
            for member, copy in self._pool.drop(*sequences):
                self._drops.setdefault(member, []).append(copy)

    @property
    def is_busy(self) -> bool:
        return super().is_busy or bool(self._questions and self._pool.left)

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        return self.ask(None, lambda engine: engine.encode_voice(*clip))

    def ask(self, engine: object, question: Callable[[Engine], Answer]) -> Future[Answer]:
        """Put a question to one of the engines, between two steps, in the thread that holds it."""
        answer: Future[Answer] = Future()
        with self._changed:
            self._questions.append((answer, question))
            self._start(self._pool.start())
            self._changed.notify_all()
        return answer

    def _start(self, members: list[Member]) -> None:
        turns = _InTurn(len(members))
        for number, member in enumerate(members):
            self._run(member.label, self._work, member, turns, number)

    def _end(self) -> BaseException | None:
        small = next((member for member in self._pool.lost if isinstance(member.error, TooSmall)), None)
        if small is None or not self._stage.shared:
            own = [member.error for member in self._pool.lost if not self._engines[member].is_closing]
            return own[-1] if own else self._pool.lost[0].error
        self._stage = self._stage._replace(shared=False)  # alone, it may decode with a single row
        alone = Member(small.label, small.kind)
        self._engines[alone] = self._engines[small]
        self._pool.join(alone)
        return None

    def _work(self, member: Member, turns: _InTurn, number: int):
        engine = self._engines[member]
        try:
            with torch.inference_mode(), contextlib.ExitStack() as stack:
                with turns.turn(number):
                    decoder = stack.enter_context(engine.decoding())
                    session = stack.enter_context(decoder.session(self._stage))
                self._sessions.append((engine, session))
                self._decode(member, engine, session)
        except (HiggsError, torch.cuda.OutOfMemoryError) as error:
            traceback.clear_frames(error.__traceback__)  # frames keep tensors alive
            if engine.is_closing or isinstance(error, (TooSmall, torch.cuda.OutOfMemoryError)):
                self._tell(self._pool.lose, member, error.with_traceback(None))
            else:
                self._fail(error.with_traceback(None))
        except BaseException as error:
            self._fail(error)
            raise

    def _decode(self, member: Member, engine: Engine, session: DeviceSession):
        while not self._closed:
            self._feed(member, engine, session)
            if session.is_busy:
                for one in session.step():
                    if isinstance(one.error, torch.cuda.OutOfMemoryError):
                        raise one.error
                    self._tell(self._pool.hear, member, one)
                continue
            engine.require_open()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._questions or self._pool.has_work(member), timeout=TICK
                )

    def _feed(self, member: Member, engine: Engine, session: DeviceSession):
        """Submit sequences for the free rows, drop others, and answer a question, between two steps."""
        with self._changed:
            dropped = self._drops.pop(member, ())
            session.drop(*dropped)
            copies = self._pool.take(member, session.room)
        session.submit(*copies)
        with self._changed:
            pending = self._questions.popleft() if self._questions else None
        if pending is not None:
            answer, question = pending
            run_into(answer, lambda: question(engine))

    def close(self) -> None:
        super().close()
        for thread in self._threads:
            thread.join()
        for answer, _ in self._questions:
            answer.set_exception(HiggsError("The model was unloaded while it spoke. Run it again."))


def described(parts: Iterable[tuple[str, str]]) -> str:
    """Describe the devices of (kind, how) pairs, grouping equal ones."""
    counts = Counter((kind, how) for kind, how in parts if how)
    return "; ".join(f"{count} x {kind}: {how}" for (kind, how), count in counts.items())
