"""The speaking thread, which adds jobs to one running batch as they come."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from ..core.config import SamplingParams
from ..core.errors import HiggsError
from ..engines.planner import Planner
from ..engines.speech_api import SpeechAPI
from ..prompt.script import Turn
from ..prompt.speakers import most_reference_frames
from ..speech.decoder import Answer, ReferenceClip, Stage, run_into
from ..speech.drive import Drive, Driven, Ended, Stages
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener, SpeechInput
from ..voice.voice import Voice

ROWS = 64  # on each device, fewer if memory is short; more would make each step longer, also for few callers
_IDLE = 600.0  # idle seconds until the batch frees its memory, after which a caller waits for it again
_IDLE_WORKERS = 30.0  # and until workers that were left out are tried again
_LOST = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)  # of a lost GPU; torch 2.7 has none
TURN = 10.0  # seconds in which jobs of one adapter may begin while those of another wait


@dataclass(eq=False)
class SpeechJob:
    """A text to speak, and callbacks. Both are called in the speaker's thread and must not block.

    end(result or exception): called once, unless the job was dropped. The result is a function that makes it, in any
    thread, once its sound is wanted in one piece. hear(wav [n]): sound as it comes. index: position
    of a part in a split text. adapter: name of the engine that speaks it.
    """

    text: str
    end: Callable[[Callable[[], SpeechResult] | BaseException], None]
    voices: Mapping[str, Voice] = field(default_factory=lambda: MappingProxyType({}))
    params: SamplingParams | None = None
    scene: str | None = None
    hear: Callable[[torch.Tensor], None] | None = None
    index: int = 0
    adapter: str = ""

    def begin(self, planner: Planner) -> tuple[Driven, Stages]:
        """Make the request and its stages. Raises HiggsError if the text cannot be spoken."""
        turns = (Turn("", self.text, occurrence=self.index),)
        given = SpeechInput(turns, self.voices, self.params or SamplingParams(), self.scene)
        request = planner.request(given, Listener(on_audio=self.hear))
        return request, (sequences for _, sequences in request.stages())


class SpeakerJob(Protocol):
    """A job for the speaker's thread, such as a `SpeechJob`."""

    @property
    def adapter(self) -> str: ...

    def begin(self, planner: Planner) -> tuple[Driven, Stages]: ...

    @property
    def end(self) -> Callable[[Any], None]: ...


class Refused(HiggsError):
    """The text cannot be spoken: it has no word, or does not fit."""


class _Item(NamedTuple):
    do: Callable[[Drive], None]
    fail: Callable[[BaseException], object]
    adapter: str | None = None  # None: whichever is open
    job: SpeakerJob | None = None
    is_drop: bool = False  # without a session there is nothing to drop


def _failing(future: Future) -> Callable[[BaseException], object]:
    return lambda error: future.done() or (future.set_running_or_notify_cancel() and future.set_exception(error))


class SpeakerThread:
    """Speaks many jobs at once in its own thread. `close` ends it, and the engine stays open unless a LoRA took turns.

    shared: other machines speak chunks of the same texts, whose codes must be the same. adapted: engines of the same
    model with a LoRA each, by name. One engine is open at a time. Jobs of the others wait in the order in which the
    first of each came: the open one takes no more jobs after `TURN`, finishes those that it has, and is closed.
    """

    def __init__(
        self,
        engine: SpeechAPI,
        adapted: Mapping[str, SpeechAPI] = MappingProxyType({}),
        shared: bool = False,
    ):
        self.engines, self._shared = {"": engine, **adapted}, shared
        self._adapter: str | None = ""  # of the open engine; None if the last one could not be opened
        self.changes = 0  # times that another engine was opened
        self._waiting: dict[str, list[_Item]] = {}  # by adapter
        self._began = 0.0  # of the adapter's turn
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self.broken: BaseException | None = None  # error that ended the thread
        self._spoken: dict[Driven, SpeakerJob] = {}
        self._requests: dict[SpeakerJob, Driven] = {}
        self._drive: Drive | None = None
        self._idle = _IDLE_WORKERS if engine.workers() else _IDLE
        self._thread = threading.Thread(target=self._run, name="higgs-speaker", daemon=True)
        self._thread.start()

    @property
    def most_reference_frames(self) -> int:
        """Maximum frames of a voice that is made from speech."""
        return most_reference_frames(self.engines[""].planner.context)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that jobs may have."""
        return tuple(filter(None, self.engines))

    @property
    def speaking(self) -> int:
        """Number of jobs that are being spoken or wait for a row."""
        return len(self._requests)

    @property
    def rows(self) -> tuple[int, int]:
        """Number of chunks being spoken, and of those that wait. Thread-safe."""
        return (0, 0) if (drive := self._drive) is None else drive.rows

    def speak(self, job: SpeakerJob) -> None:
        self._put(lambda drive: self._add(drive, job), job.end, adapter=job.adapter, job=job)

    def drop(self, job: SpeakerJob) -> None:
        """Drop a job: it calls no more callbacks, and its row is free at the next step."""
        self._put(lambda drive: self._drop(drive, job), lambda error: None, is_drop=True)

    def encode(self, wav: torch.Tensor, rate: int, transcript: str) -> Future[Voice]:
        """Encode a clip wav [C, S] between two steps."""
        return self._begin(lambda drive: drive.session.encode_voice(ReferenceClip(wav, rate, transcript)))

    def ask(self, adapter: str, question: Callable[[SpeechAPI], Answer]) -> Future[Answer]:
        """Put a question to an adapter's engine, between two steps; of several devices, to one of their engines."""
        return self._begin(lambda drive: drive.session.ask(self._engine, question), adapter)

    def close(self) -> None:
        """End the thread after its step, failing all waiting jobs."""
        self._wake(None)
        self._thread.join()

    def _begin(self, begin: Callable[[Drive], Future[Answer]], adapter: str | None = None) -> Future[Answer]:
        """Begin what ends in a future in the speaker's thread, and return a future of the same result."""
        answer: Future[Answer] = Future()

        def do(drive: Drive):
            begin(drive).add_done_callback(lambda own: run_into(answer, own.result))

        self._put(do, _failing(answer), adapter=adapter)
        return answer

    def _put(self, do: Callable[[Drive], None], fail: Callable[[BaseException], object], **kind: Any):
        self._wake(_Item(do, fail, **kind))
        if self.broken is not None:  # maybe since a moment ago
            self._fail_inbox(self.broken)

    def _wake(self, item: _Item | None):
        self._inbox.put(item)
        if (drive := self._drive) is not None:
            drive.session.wake()

    def _run(self):
        end: BaseException = HiggsError("The server is shutting down.")
        try:
            while (adapter := self._next()) is not None and self._serve_from(adapter):
                pass
        except BaseException as error:
            end = error
            raise
        finally:
            self.broken = end
            self._fail(end)
            for adapter in [*self._waiting]:
                self._fail_waiting(adapter, end)
            self._fail_inbox(end)
            if self._adapter:
                self._engine.__exit__(None, None, None)

    @property
    def _engine(self) -> SpeechAPI:
        return self.engines[self._adapter or ""]

    def _next(self) -> str | None:
        """Return the adapter for which items have waited the longest, or else that of the next item. None: end."""
        while not self._waiting:
            if (item := self._inbox.get()) is None:
                return None
            if not item.is_drop:
                self._waiting[(self._adapter or "") if item.adapter is None else item.adapter] = [item]
        return next(iter(self._waiting))

    def _change(self, adapter: str):
        """Open an adapter's engine in the place of the open one. Raises HiggsError and torch.OutOfMemoryError."""
        if adapter != self._adapter:
            before, self._adapter = self._adapter, None
            if before is not None:
                self.engines[before].__exit__(None, None, None)
            try:
                self.engines[adapter].__enter__()
            except (torch.OutOfMemoryError, _LOST):
                raise
            except (OSError, RuntimeError, ValueError) as error:  # such as a file that is gone
                name = f"The LoRA {adapter}" if adapter else "The model"
                reason = f"{type(error).__name__}: {error}"
                raise HiggsError(f"{name} cannot be opened ({reason}). Check its files and try again.") from error
            self._adapter, self.changes = adapter, self.changes + 1
            with contextlib.suppress(HiggsError, torch.OutOfMemoryError):  # word times are then estimated
                self._engine.heads()  # while nothing is spoken
        self._began = time.monotonic()

    def _serve_from(self, adapter: str) -> bool:
        """Open a session with what waits for an adapter, and serve until idle. False if the thread should end."""
        try:
            self._change(adapter)
            with torch.inference_mode(), self._engine.decoding() as decoder:
                rows = ROWS * self._engine.devices
                stage = Stage(rows, self._engine.planner.context, shared=self._shared, open=True)
                with decoder.session(stage) as session:
                    self._drive = drive = Drive(session)
                    while items := self._waiting[adapter]:
                        self._do(drive, items.pop(0))
                    del self._waiting[adapter]
                    return self._serve(drive)
        except (HiggsError, torch.OutOfMemoryError) as error:  # every job of the session failed; retrying may work
            if self._drive is None:  # there was no session
                self._fail_waiting(adapter, error)
            self._fail(error)
        finally:
            self._drive = None
        return True

    def _serve(self, drive: Drive) -> bool:
        while True:
            while drive.is_busy:
                self._finish(drive.step())
                while not self._inbox.empty():
                    if (item := self._inbox.get()) is None:
                        return False
                    self._take(drive, item)
            if self._waiting:
                return True
            try:
                item = self._inbox.get(timeout=self._idle)
            except queue.Empty:
                return True
            if item is None:
                return False
            self._take(drive, item)

    def _take(self, drive: Drive, item: _Item):
        """Do an item now, or let it wait for its adapter's turn."""
        is_over = item.job and self._waiting and time.monotonic() - self._began > TURN
        if item.adapter is None or (item.adapter == self._adapter and not is_over):
            self._do(drive, item)
        else:
            self._waiting.setdefault(item.adapter, []).append(item)

    def _do(self, drive: Drive, item: _Item):
        try:
            item.do(drive)
        except BaseException as error:
            item.fail(error)
            raise

    def _add(self, drive: Drive, job: SpeakerJob):
        try:
            request, stages = job.begin(self._engine.planner)
            drive.add(request, stages)
        except HiggsError as error:
            job.end(Refused(str(error)))
        except torch.OutOfMemoryError as error:
            job.end(error)
        else:
            self._spoken[request], self._requests[job] = job, request

    def _drop(self, drive: Drive, job: SpeakerJob):
        if request := self._requests.pop(job, None):
            del self._spoken[request]
            drive.drop(request)
        for adapter, items in [*self._waiting.items()]:
            self._waiting[adapter] = [item for item in items if item.job is not job]
            if not self._waiting[adapter]:
                del self._waiting[adapter]

    def _finish(self, ended: list[Ended]):
        for request, error in ended:
            job = self._spoken.pop(request)
            del self._requests[job]
            job.end(request.result if error is None else error)

    def _fail(self, error: BaseException):
        jobs = list(self._requests)
        self._spoken.clear()
        self._requests.clear()
        for job in jobs:
            job.end(error)

    def _fail_waiting(self, adapter: str, error: BaseException):
        for item in self._waiting.pop(adapter):
            item.fail(error)

    def _fail_inbox(self, error: BaseException):
        """Fail what came too late. Called in any thread."""
        with contextlib.suppress(queue.Empty):
            while True:
                if item := self._inbox.get_nowait():
                    item.fail(error)
