"""Decoder for one device: a scheduler, a model runner, and the codec."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from ..codec.waveform import Sound, Waveform
from ..core.config import FRAME_SAMPLES
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..core.threads import is_slow
from ..decode.model_runner import ModelRunner
from ..decode.prefix_cache import PrefixCache
from ..decode.scheduler import Outputs, Scheduler
from ..device.memory import Peak
from ..speech.decoder import Answer, Heard, ReferenceClip, SessionReport, Stage, done_now
from ..voice.clip import Wave
from ..voice.voice import Voice
from ..words.check import ChunkCheck
from ..words.whisper_check import WhisperCheck
from .loaded_model import LoadedModel

_AHEAD = 2  # sequences queued ahead of free rows, so that the device never waits for the host

Encode = Callable[[Wave, int, str], Voice]
MakeCheck = Callable[[Sequence], ChunkCheck | WhisperCheck]


class TooSmall(HiggsError):
    """The device has no memory for two rows, so its codes would differ from those of its pool's other devices."""


class DeviceDecoder:
    """Decodes with a loaded model, in the thread that holds its engine.

    encode: `Engine.encode_voice`. require_open(): called after every step; raises if the engine is being closed.
    make_check: makes the check of a chunk. None if nothing can check it.
    """

    def __init__(
        self, loaded: LoadedModel, encode: Encode, require_open: Callable[[], None], make_check: MakeCheck | None
    ):
        self.loaded, self.encode, self.require_open, self.make_check = loaded, encode, require_open, make_check

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[DeviceSession]:
        """Yield a session. Raises torch.OutOfMemoryError, and TooSmall if a shared stage gets a single row."""
        with contextlib.ExitStack() as stack:
            peak = Peak(self.loaded.pool.device, self.loaded.held_bytes)
            runner = None
            if stage.rows:
                runner = stack.enter_context(self.loaded.runner_for(stage.rows, stage.slots, stage.alone))
                if stage.shared and runner.state.batch == 1 and runner.state.device.type == "cuda":
                    raise TooSmall("has no room for two chunks at a time")
            session = DeviceSession(self, runner, stage, peak)
            stack.callback(session.close)
            yield session


class DeviceSession:
    def __init__(self, decoder: DeviceDecoder, runner: ModelRunner | None, stage: Stage, peak: Peak):
        self._decoder, self._peak, loaded = decoder, peak, decoder.loaded
        self._checks: dict[Sequence, ChunkCheck | WhisperCheck] = {}  # of incomplete sequences
        self._unread: list[Sequence] = []  # whose checks are still to be made, while the device is busy
        self._cleared: dict[Sequence, int] = {}  # samples that a listener may hear
        windows, rows = loaded.windows(), 0 if runner is None else min(runner.state.batch, stage.rows)
        together = 1 if stage.alone and runner is not None else loaded.windows_together()
        early = loaded.config.early
        self._waveform = Waveform(loaded.decoder, loaded.pool, windows, together, serialize=rows < 2, early=early)
        if stage.open:
            self._waveform.prepare()
        self._scheduler: Scheduler | None = None
        self._how = ""
        self._notes = (windows.note,) if windows is not None and windows.note else ()
        self._sounds: dict[Sequence, Sound] = {}  # of incomplete sequences
        self._spoken: deque[Sequence] = deque()  # submitted with codes
        self._decoded: deque[Sequence] = deque()  # whose codes may fill windows
        self._moved: set[Sequence] = set()  # with new codes
        if runner is not None:
            self._how = loaded.describe(runner) + (f", {rows} chunks at a time" if rows > 1 else "")
            self._notes += tuple(runner.notes)
            prefixes = PrefixCache(runner.pool, stage.own_voices) if stage.own_voices else loaded.prefixes
            first, in_order = self._waveform.first_frames, _is_in_order(loaded)
            self._scheduler = Scheduler(
                runner, prefixes, first_frames=first, in_order=in_order, runs_short=self._runs_short
            )

    @property
    def report(self) -> SessionReport:
        return SessionReport(self._how, self._notes, self._peak.nbytes())

    @property
    def room(self) -> int:
        """Number of further sequences it can start soon."""
        if self._scheduler is None:
            return _AHEAD - len(self._spoken)
        return min(_AHEAD, self._scheduler.running.count(None)) - len(self._scheduler.waiting) - len(self._spoken)

    def submit(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            if sequence.checked and self._decoder.make_check is not None:
                self._unread.append(sequence)
            if sequence.finished:
                self._sounds[sequence] = self._waveform.sound()
                self._spoken.append(sequence)
                continue
            assert self._scheduler is not None, "a stage without rows decodes nothing"
            self._sounds[sequence] = self._waveform.sound(streamed=sequence.listened)
            self._scheduler.add(sequence, alone=sequence.listened and not self._scheduler.is_busy)

    def drop(self, *sequences: Sequence) -> None:
        self._unread = [sequence for sequence in self._unread if sequence not in sequences]
        for sequence in sequences:
            self._checks.pop(sequence, None)
            self._cleared.pop(sequence, None)
            if sound := self._sounds.pop(sequence, None):
                self._waveform.awaited.discard(sound)
                if self._scheduler is not None:
                    self._scheduler.drop(sequence)
            if sequence in self._spoken:
                self._spoken.remove(sequence)

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        return done_now(lambda: self._decoder.encode(*clip))

    def ask(self, engine: Any, question: Callable[[Any], Answer]) -> Future[Answer]:
        return done_now(lambda: question(engine))

    def wake(self) -> None:
        """Do nothing: a step never waits."""

    @property
    def is_busy(self) -> bool:
        return bool(self._sounds)

    def _runs_short(self) -> bool:
        """True if a stream that is being decoded may run dry soon."""
        return any(sound.is_short and not sequence.finished for sequence, sound in self._sounds.items())

    def step(self) -> list[Heard]:
        """Decode windows of codes that are there, or else a step of the scheduler and then its windows."""
        if self._spoken and not self._decoded:
            self._make_checks()
            sequence = self._spoken.popleft()
            self._sounds[sequence].push(torch.cat(sequence.codes))
            self._decoded.append(sequence)
        if self._decoded:
            self._decode_windows()
        elif self._scheduler is not None and self._scheduler.is_busy:
            outputs = self._scheduler.step()
            self._make_checks()
            self._take(self._scheduler, outputs)
            self._decode_windows()  # the device has the next step meanwhile
        else:
            self._waveform.start()
            for sequence in [one for one, check in self._checks.items() if isinstance(check, ChunkCheck)]:
                self._judge(sequence)  # while the device decodes
            self._waveform.finish()
        self._waveform.poll(wait=bool(self._waveform.awaited))
        self._decoder.require_open()
        return self._outputs()

    def _make_checks(self) -> None:
        """Read the texts of new sequences, for their checks."""
        while self._unread:
            sequence = self._unread.pop()
            assert self._decoder.make_check is not None
            self._checks[sequence] = self._decoder.make_check(sequence)

    def _take(self, scheduler: Scheduler, outputs: Outputs) -> None:
        for sequence, frames in outputs:
            sound = self._sounds.get(sequence)  # the caller may have dropped it since
            if sound is None:
                continue
            place = scheduler.place_of(sequence)
            if sequence.finished and place and sequence in self._checks:  # before another prompt takes the row
                with contextlib.suppress(torch.cuda.OutOfMemoryError):  # then the codes are read again
                    self._checks[sequence].listen(*place, sequence.num_frames)
            sound.push(frames)
            self._decoded.append(sequence)

    def _decode_windows(self) -> None:
        """Decode the windows that codes fill: one if windows are decoded singly, to be heard before the next."""
        while self._decoded:
            sequence = self._decoded[0]
            self._moved.add(sequence)
            sound = self._sounds.get(sequence)  # the caller may have dropped it since
            if sound is not None and sound.advance():
                if self._waveform.together == 1:
                    return
                continue
            self._decoded.popleft()
            if sound is not None and sequence.listened and sequence.codes and sequence in self._checks:
                place = self._scheduler and self._scheduler.place_of(sequence)
                self._cleared.setdefault(sequence, 0)
                with contextlib.suppress(torch.cuda.OutOfMemoryError):  # no more is heard until there is a verdict
                    frames = self._checks[sequence].frames_to_hear(torch.cat(sequence.codes), place)
                    self._cleared[sequence] = frames * FRAME_SAMPLES
            if sound is not None and sequence.finished:
                sound.finish()

    def _judge(self, sequence: Sequence) -> None:
        check = self._checks.pop(sequence, None)
        if check is not None and sequence.codes:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):  # costs only the verdict
                sequence.verdict = check.verdict(torch.cat(sequence.codes), sequence.ended)

    def _outputs(self) -> list[Heard]:
        moved, given, outputs = self._moved, self._waveform.given, []
        if not (moved or given):
            return []
        for sequence in [one for one, sound in self._sounds.items() if sound in given or one in moved]:
            sound = self._sounds[sequence]
            wav, is_last = sound.new(), sound.is_complete
            if isinstance(check := self._checks.get(sequence), WhisperCheck):
                check.receive(wav)
            sequence.error = sequence.error or sound.error
            if sequence.error is not None:
                self.drop(sequence)
                wav, is_last = wav[:0], True
            elif is_last:
                del self._sounds[sequence]
                self._judge(sequence)
            cleared = self._cleared.pop(sequence, None) if is_last else self._cleared.get(sequence)
            if sequence.listened:
                sound.deliver(sound.returned if cleared is None else min(cleared, sound.returned))
            outputs.append(Heard(sequence, wav, is_last, cleared=cleared))
        moved.clear()
        given.clear()
        return outputs

    def close(self) -> None:
        """Drop references to device memory, because an exception may keep this object alive."""
        self._waveform.close()
        if self._scheduler is not None:
            self._scheduler.close()
        for held in (self._sounds, self._checks, self._unread, self._cleared):
            held.clear()


def _is_in_order(loaded: LoadedModel) -> bool:
    """True if rows share a processor that speaks faster than it is heard, so that a batch only delays the first."""
    device = loaded.pool.device
    return device.type == "cpu" and not is_slow(device, sum(tensor.nbytes for tensor in loaded.talker.tensors()))
