"""The speaking thread, which adds jobs to one running batch as they come."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..core.config import SamplingParams
from ..core.errors import HiggsError
from ..engines.speech_api import SpeechAPI
from ..prompt.script import Turn
from ..prompt.speakers import most_reference_frames
from ..speech.decoder import ReferenceClip, Session, Stage
from ..speech.drive import Drive, Ended
from ..speech.request import SpeechRequest
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener, SpeechInput
from ..voice.voice import Voice

_ROWS = 64  # more would make each step longer, also for few callers
_IDLE = 30.0  # idle seconds until the batch frees its memory


@dataclass(eq=False)
class SpeechJob:
    """A text to speak, and callbacks. Both are called in the speaker's thread and must not block.

    end(result or exception): called once, unless the job was dropped. The result is a function that makes it, in any
    thread, once its sound is wanted in one piece. hear(wav [n]): sound as it comes. index: position
    of a part in a split text.
    """

    text: str
    end: Callable[[Callable[[], SpeechResult] | BaseException], None]
    voices: Mapping[str, Voice] = field(default_factory=lambda: MappingProxyType({}))
    params: SamplingParams | None = None
    scene: str | None = None
    hear: Callable[[torch.Tensor], None] | None = None
    index: int = 0


class Refused(HiggsError):
    """The text cannot be spoken: it has no word, or does not fit."""


class _Batch(NamedTuple):
    """A session and its loop, while there is work."""

    session: Session
    drive: Drive


class _Item(NamedTuple):
    do: Callable[[_Batch], None]
    fail: Callable[[BaseException], None]


class SpeakerThread:
    """Speaks many jobs at once in its own thread. `close` ends it, and the engine stays open.

    rows: maximum on each device; fewer if memory is short.
    """

    def __init__(self, engine: SpeechAPI, rows: int = _ROWS):
        self._engine, self._rows = engine, rows
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self.broken: BaseException | None = None  # error that ended the thread
        self._spoken: dict[SpeechRequest, SpeechJob] = {}
        self._requests: dict[SpeechJob, SpeechRequest] = {}
        self._session: Session | None = None
        self._drive: Drive | None = None
        self._thread = threading.Thread(target=self._run, name="higgs-speaker", daemon=True)
        self._thread.start()

    @property
    def most_reference_frames(self) -> int:
        """Maximum frames of a voice that is made from speech."""
        return most_reference_frames(self._engine.context)

    @property
    def speaking(self) -> int:
        """Number of jobs that are being spoken or wait for a row."""
        return len(self._requests)

    @property
    def rows(self) -> tuple[int, int]:
        """Number of chunks being spoken, and of those that wait. Thread-safe."""
        return (0, 0) if (drive := self._drive) is None else drive.rows

    def speak(self, job: SpeechJob) -> None:
        """Add a job."""
        self._put(lambda batch: self._add(batch, job), job.end)

    def drop(self, job: SpeechJob) -> None:
        """Drop a job: it calls no more callbacks, and its row is free at the next step."""
        self._put(lambda batch: self._drop(batch, job), lambda error: None)

    def encode(self, wav: torch.Tensor, rate: int, transcript: str, end: Callable[[Any], None]) -> None:
        """Encode a clip wav [C, S] between two steps, then call end(voice or exception)."""

        def encode(batch: _Batch):
            made = batch.session.encode_voice(ReferenceClip(wav, rate, transcript))
            made.add_done_callback(lambda made: end(made.exception() or made.result()))

        self._put(encode, end)

    def words(self, speech: SpeechResult, end: Callable[[Any], None]) -> None:
        """Find when each word of a result is heard, between two steps, then call end(words or exception)."""

        def find(batch: _Batch):
            try:
                end(self._engine.words(speech))
            except (HiggsError, torch.OutOfMemoryError) as error:  # the running jobs go on
                end(error)

        self._put(find, end)

    def close(self) -> None:
        """End the thread after its step, failing all waiting jobs."""
        self._wake(None)
        self._thread.join()

    def _put(self, do: Callable[[_Batch], None], fail: Callable[[BaseException], None]):
        if self.broken is not None:
            fail(self.broken)
        else:
            self._wake(_Item(do, fail))

    def _wake(self, item: _Item | None):
        self._inbox.put(item)
        if (session := self._session) is not None:
            session.wake()

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
        """Open a session with this item and serve until idle for a while. False if the thread should end."""
        taken = False
        try:
            with torch.inference_mode(), self._engine.decoding() as decoder:
                stage = Stage(self._rows * self._engine.devices, self._engine.context)
                with decoder.session(stage) as self._session:
                    self._drive = Drive(self._session)
                    batch = _Batch(self._session, self._drive)
                    taken = True
                    item.do(batch)
                    return self._serve(batch)
        except (HiggsError, torch.OutOfMemoryError) as error:  # every job of the session failed; retrying may work
            if not taken:
                item.fail(error)
            self._fail(error)
        finally:
            self._session = self._drive = None
        return True

    def _serve(self, batch: _Batch) -> bool:
        while True:
            for ended in batch.drive:
                self._finish(ended)
                while not self._inbox.empty():
                    if (item := self._inbox.get()) is None:
                        return False
                    item.do(batch)
            try:
                item = self._inbox.get(timeout=_IDLE)
            except queue.Empty:
                return True
            if item is None:
                return False
            item.do(batch)

    def _add(self, batch: _Batch, job: SpeechJob):
        what = SpeechInput(
            (Turn("", job.text, occurrence=job.index),), job.voices, job.params or SamplingParams(), job.scene
        )
        try:
            request = self._engine.request(what, Listener(on_audio=job.hear))
            batch.drive.add(request, (sequences for _, sequences in request.stages()))
        except HiggsError as error:
            job.end(Refused(str(error)))
            return
        self._spoken[request], self._requests[job] = job, request

    def _drop(self, batch: _Batch, job: SpeechJob):
        if request := self._requests.pop(job, None):
            del self._spoken[request]
            batch.drive.drop(request)

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
