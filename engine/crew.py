"""Several devices that decode a request together: one queue, a thread each. Knows no text.

A device takes a sequence from the queue when it has a row for it, decodes it and makes its sound; it gives both back
when they are whole. So one that is taken away in between has lost time alone: what it had goes to the others.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch

from .codec.waveform import Sound, Waveform
from .decode.model_runner import ModelRunner
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Scheduler
from .errors import HiggsError
from .loaded_model import LoadedModel
from .memory import Peak
from .relay import RelaySound
from .sequence import Sequence

_LOOK = 0.1  # seconds that a thread waits before it looks again whether it is to stop
_AHEAD = 2  # sequences that a device takes before it has rows for them

Job = Sequence | RelaySound  # a sequence to decode, or codes to make sound of


class TooSmall(HiggsError):
    """A device has no room for two rows, so it would say other codes than the others."""


class Card(Protocol):
    """An engine, as far as its part in this goes. label: which device it is; kind: what sort of one."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def is_closing(self) -> bool: ...

    def at_work(self) -> AbstractContextManager[tuple[LoadedModel, Waveform]]: ...

    def require_open(self) -> None: ...


@dataclass(frozen=True)
class Stage:
    """Sequences that are decoded together, and how; see `SpeechRequest` and `LoadedModel.runner_for`."""

    jobs: list[Job]
    slots: int
    alone: bool
    own_voices: int
    shared: bool = False  # others decode parts of it elsewhere


class Done(NamedTuple):
    """A job, with what was decoded of a sequence, and its sound [n]."""

    job: Job
    spoken: Sequence | None
    wav: torch.Tensor


class AtWork(Protocol):
    """Who decodes a stage: iterate for what is done, in any order, and None whenever nothing was done for a while."""

    @property
    def frames(self) -> int: ...

    def add(self, *jobs: Job) -> None: ...

    def __iter__(self) -> Iterator[Done | None]: ...


class _Left(NamedTuple):
    """A device that takes no more part, or all of whose work is done."""

    desk: _Desk
    error: BaseException | None
    is_lost: bool  # whether the others may go on without it


@dataclass(eq=False)
class _Desk:
    """What one device has taken from the queue."""

    card: Card
    sounds: dict[Job, tuple[Sequence | None, Sound]] = field(default_factory=dict)
    jobs: dict[Sequence, Job] = field(default_factory=dict)  # by what is decoded, which is a copy of the job's
    how: str = ""
    notes: tuple[str, ...] = ()
    peak: int = 0

    @property
    def frames(self) -> int:
        """Frames of sequences that are under way."""
        return sum(sequence.num_frames for sequence in list(self.jobs))


class Crew:
    """The devices at work on one stage, for the length of a `with`; iterate for what is done, in any order.

    Iterating yields None whenever nothing was done for a while. Raises what ended the last device, and at once
    what is not a device's own fault, such as values that are not numbers.
    """

    def __init__(self, cards: Ordered[Card], stage: Stage):
        self._stage = stage
        count = min(len(cards), len(stage.jobs))
        self._rows = math.ceil(len(stage.jobs) / count)
        self.desks = [_Desk(card) for card in cards[:count]]
        self.lost: list[tuple[Card, BaseException]] = []
        self._waiting: deque[Job] = deque(stage.jobs)
        self._missing = set(stage.jobs)
        self._results: queue.Queue[Done | _Left] = queue.Queue()
        self._wake = threading.Condition()
        self._stopped = False
        self._making, self._made = threading.Condition(), 0  # desks that have a runner, or will never have one
        self._threads = [
            threading.Thread(target=self._work, args=(desk,), name=f"Higgs TTS {desk.card.label}", daemon=True)
            for desk in self.desks
        ]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Ends all threads; each stops at its next step."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def add(self, *jobs: Job) -> None:
        """More to do, after what waits."""
        self._missing.update(jobs)
        self._hand_out(jobs)

    @property
    def missing(self) -> list[Job]:
        """What is not done."""
        return list(self._missing)

    @property
    def frames(self) -> int:
        """Frames of what is under way."""
        return sum(desk.frames for desk in self.desks)

    def __iter__(self) -> Iterator[Done | None]:
        while self._missing:
            try:
                found = self._results.get(timeout=_LOOK)
            except queue.Empty:
                yield None
                continue
            if isinstance(found, Done):
                self._missing.remove(found.job)
                yield found
            else:
                self._lose(found)

    def _lose(self, left: _Left):
        """Another device does what this one has not done; where there is none, the work ends as that one did."""
        assert left.error is not None  # only who is stopped leaves without a reason
        if not left.is_lost:
            raise left.error
        self.lost.append((left.desk.card, left.error))
        if len(self.lost) == len(self.desks):
            raise left.error
        given_back = list(left.desk.sounds)
        left.desk.sounds.clear()
        left.desk.jobs.clear()
        self._hand_out(given_back)

    def _hand_out(self, jobs: Iterable[Job]):
        with self._wake:
            self._waiting.extend(jobs)
            self._wake.notify_all()

    def _work(self, desk: _Desk):
        """The thread of a device."""
        try:
            with torch.inference_mode(), contextlib.ExitStack() as stack:
                with self._in_turn(desk):
                    loaded, waveform = stack.enter_context(desk.card.at_work())
                    peak = Peak(loaded.pool.device, loaded.held_bytes)
                    asked = self._rows, self._stage.slots, self._stage.alone
                    runner = stack.enter_context(loaded.runner_for(*asked))
                self._decode(desk, loaded, runner, waveform)
                desk.peak = peak.nbytes()
        except (HiggsError, torch.cuda.OutOfMemoryError) as error:
            traceback.clear_frames(error.__traceback__)  # tensors in them would outlive the device's part
            is_lost = desk.card.is_closing or isinstance(error, (TooSmall, torch.cuda.OutOfMemoryError))
            self._results.put(_Left(desk, error.with_traceback(None), is_lost))
        except BaseException as error:
            self._results.put(_Left(desk, error, False))
            raise

    @contextlib.contextmanager
    def _in_turn(self, desk: _Desk) -> Iterator[None]:
        """Inside, no other desk is made; afterwards all have been.

        torch marks whatever is allocated on any device while one captures, and warns when it is freed. In the order of
        the desks, so that two calls cannot each wait for a device that the other has.
        """
        with self._making:
            self._making.wait_for(lambda: self._made == self.desks.index(desk))
        try:
            yield
        finally:
            with self._making:
                self._made += 1
                self._making.notify_all()
        with self._making:
            self._making.wait_for(lambda: self._made == len(self.desks))

    def _decode(self, desk: _Desk, loaded: LoadedModel, runner: ModelRunner, waveform: Waveform):
        stage, batch = self._stage, runner.state.batch
        is_shared = stage.shared or len(self.desks) > 1
        if batch == 1 and not stage.alone and is_shared and loaded.pool.device.type == "cuda":
            raise TooSmall("has no room for two chunks at a time")
        desk.how = loaded.describe(runner) + (f", {batch} chunks at a time" if batch > 1 else "")
        desk.notes = tuple(runner.notes)
        waveform.windows.serialize = batch == 1
        waveform.together = 1 if stage.alone else loaded.windows_together()
        prefixes = PrefixCache(runner.pool, stage.own_voices) if stage.own_voices else loaded.prefixes
        with Scheduler(runner, (), prefixes) as scheduler:
            while not self._stopped:
                self._take(desk, scheduler, waveform)
                for outputs in scheduler:
                    for sequence, frames in outputs:
                        self._push(desk, sequence, frames)
                    waveform.poll()
                    self._deliver(desk)
                    desk.card.require_open()
                    if self._stopped:
                        return
                    self._take(desk, scheduler, waveform)
                waveform.finish()
                self._deliver(desk)
                desk.card.require_open()
                with self._wake:
                    self._wake.wait_for(lambda: self._waiting or self._stopped, timeout=_LOOK)

    def _take(self, desk: _Desk, scheduler: Scheduler, waveform: Waveform):
        """From the queue, what there are free rows for."""
        while len(scheduler.waiting) < min(_AHEAD, scheduler.running.count(None)):
            try:
                job = self._waiting.popleft()
            except IndexError:  # another device was faster
                return
            sound = waveform.sound()
            if isinstance(job, RelaySound):
                desk.sounds[job] = None, sound
                list(sound.push(torch.cat(job.codes)))
                sound.finish()
            else:
                sequence = replace(job)
                desk.sounds[job], desk.jobs[sequence] = (sequence, sound), job
                scheduler.add(sequence)

    def _push(self, desk: _Desk, sequence: Sequence, frames: torch.Tensor):
        _, sound = desk.sounds[desk.jobs[sequence]]
        list(sound.push(frames))
        if sequence.finished:
            sound.finish()

    def _deliver(self, desk: _Desk):
        """Gives back what is whole."""
        for job, (sequence, sound) in list(desk.sounds.items()):
            if sound.is_complete:
                del desk.sounds[job]
                if sequence is not None:
                    del desk.jobs[sequence]
                self._results.put(Done(job, sequence, sound.wav()))


def described(parts: Iterable[tuple[str, str]]) -> str:
    """What decodes, in words for users, of (kind of device, how): devices of a kind together."""
    found = Counter((kind, how) for kind, how in parts if how)
    return "; ".join(f"{count} x {kind}: {how}" for (kind, how), count in found.items())
