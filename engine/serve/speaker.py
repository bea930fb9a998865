"""The thread that speaks: takes what is to be said as it comes into one running batch. Knows no HTTP."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..config import MAX_BATCH, SamplingParams
from ..engine import Engine
from ..errors import HiggsError
from ..generation import Batch
from ..prompt.script import Turn
from ..request import Listener, SpeechRequest
from ..result import SpeechResult
from ..voice.voice import Voice

_IDLE = 30.0  # seconds without a call after which the batch gives its memory back


@dataclass(eq=False)
class Job:
    """What is to be said, and who is told; both are called in the speaker's thread and must not wait.

    end(result or what went wrong): called once, unless the job was dropped. hear(wav [n]): sound as it comes. index: of
    a text that comes in parts, the part's place.
    """

    text: str
    end: Callable[[SpeechResult | BaseException], None]
    voices: Mapping[str, Voice] = field(default_factory=lambda: MappingProxyType({}))
    params: SamplingParams | None = None
    scene: str | None = None
    hear: Callable[[torch.Tensor], None] | None = None
    index: int = 0


class Refused(HiggsError):
    """What cannot be said: no word in it, or more than fits."""


class _Item(NamedTuple):
    do: Callable[[Batch], None]
    fail: Callable[[BaseException], None]


class Speaker:
    """Speaks jobs in a thread of its own, many at once. `close` ends it, and the engine stays open.

    rows: how many at most; fewer where memory is short.
    """

    def __init__(self, engine: Engine, rows: int = MAX_BATCH):
        self._engine, self._rows = engine, rows
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self.broken: BaseException | None = None  # why nothing is spoken any more
        self._spoken: dict[SpeechRequest, Job] = {}
        self._requests: dict[Job, SpeechRequest] = {}
        self._thread = threading.Thread(target=self._run, name="higgs-speaker", daemon=True)
        self._thread.start()

    @property
    def speaking(self) -> int:
        """Jobs that are being spoken or wait for a row."""
        return len(self._requests)

    def speak(self, job: Job) -> None:
        """Takes a job in."""
        self._put(lambda batch: self._add(batch, job), job.end)

    def drop(self, job: Job) -> None:
        """Nothing of it is heard any more, and its row is free at the next step."""
        self._put(lambda batch: self._drop(batch, job), lambda error: None)

    def encode(self, wav: torch.Tensor, rate: int, transcript: str, end: Callable[[Any], None]) -> None:
        """end(voice of the clip wav [C, S], or what went wrong). Others wait meanwhile."""

        def encode(batch: Batch):
            try:
                end(self._engine.encode_voice(wav, rate, transcript))
            except (HiggsError, torch.OutOfMemoryError) as error:
                end(error)

        self._put(encode, end)

    def close(self) -> None:
        """Ends the thread after its step; who waits is told so."""
        self._inbox.put(None)
        self._thread.join()

    def _put(self, do: Callable[[Batch], None], fail: Callable[[BaseException], None]):
        if self.broken is not None:
            fail(self.broken)
        else:
            self._inbox.put(_Item(do, fail))

    def _run(self):
        end: BaseException = HiggsError("The server is shutting down.")
        try:
            while (item := self._inbox.get()) is not None and self._serve_from(item):
                pass
        except BaseException as error:
            end = error
            raise
        finally:
            self.broken = end
            self._fail(end)

    def _serve_from(self, item: _Item) -> bool:
        """Opens a batch with this item, and serves until there has been nothing to do for a while; False at the end."""
        taken = False
        try:
            with self._engine.together(self._rows) as batch:
                taken = True
                item.do(batch)
                return self._serve(batch)
        except (HiggsError, torch.OutOfMemoryError) as error:  # all that were in it are lost; the next may be luckier
            if not taken:
                item.fail(error)
            self._fail(error)
        return True

    def _serve(self, batch: Batch) -> bool:
        while True:
            while not (len(batch) and self._inbox.empty()):
                try:
                    item = self._inbox.get(timeout=None if len(batch) else _IDLE)
                except queue.Empty:
                    return True
                if item is None:
                    return False
                item.do(batch)
            self._finish(batch.step())

    def _add(self, batch: Batch, job: Job):
        listener = Listener(lambda done, expected: None, job.hear)
        what = (Turn("", job.text, occurrence=job.index),), job.voices, job.params, job.scene
        try:
            request = batch.add(*what, listener)
        except HiggsError as error:
            job.end(Refused(str(error)))
            return
        self._spoken[request], self._requests[job] = job, request

    def _drop(self, batch: Batch, job: Job):
        if request := self._requests.pop(job, None):
            del self._spoken[request]
            batch.drop(request)

    def _finish(self, requests: list[SpeechRequest]):
        for request in requests:
            job = self._spoken.pop(request)
            del self._requests[job]
            job.end(request.result())

    def _fail(self, error: BaseException):
        jobs = list(self._requests)
        self._spoken.clear()
        self._requests.clear()
        for job in jobs:
            job.end(error)
