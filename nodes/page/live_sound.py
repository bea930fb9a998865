"""The sound of one run as it grows, for those who listen: samples in a file, an outline in memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

from ...engine import FRAME_RATE, SAMPLE_RATE, pcm_bytes

FRAME = SAMPLE_RATE // FRAME_RATE  # samples that one number of the outline stands for
SPEAKING, COMPLETE, STOPPED = "speaking", "complete", "stopped"
_WIDTH = 2  # bytes of a sample
_TICK = 1.0  # seconds after which readers are told how far it is, where nothing else is new
_SETTLING = 5.0  # seconds that a node waits, at most, for its sound to be written
_STRETCH = 1 << 20  # samples of a finished waveform that are looked at at a time

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()  # what is left to write, of all sounds


class LiveSound:
    """A waveform in the making. `hear` to `stop` are for whoever speaks and wait for nothing: a thread writes.

    changed(): called in that thread whenever there is something new to read.
    """

    def __init__(self, path: Path, changed: Callable[[], None]):
        self._path, self._changed = path, changed
        self._lock = threading.Lock()  # file, outline and counters belong together
        self.state, self.problem = SPEAKING, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w+b")
        except OSError as error:
            self._file = io.BytesIO()
            self._give_up(error)
        self.version = 0  # counts whatever is new
        self.revision = 0  # counts how often what had been there was replaced
        self.restarts: list[str] = []  # why the first chunk was spoken again, each time
        self._clear()
        self._began, self._latest, self._steps, self._done, self._expected = 0.0, 0.0, -1, 0, 0
        self._heard = 0  # steps when something was heard last
        self._ticked = 0.0  # when readers were last told how far it is
        _writer()

    def _clear(self):
        self._file.seek(0)
        self._file.truncate()
        self._outline, self._rest, self._size, self._piece = bytearray(), b"", 0, 0
        self._digest = hashlib.blake2b()

    def hear(self, wav: torch.Tensor) -> None:
        """Append samples [n] float32, which are on the host."""
        self._heard = self._steps
        _jobs.put(functools.partial(self._write, self._append, wav.numpy()))

    def begin_anew(self, why: str) -> None:
        """All so far is void."""
        _jobs.put(functools.partial(self._write, self._restart, why))

    def step(self, done: int, expected: int) -> None:
        """Called after every step of speaking: frames spoken so far, and how many all of it will be."""
        self._latest = time.monotonic()
        self._began = self._began or self._latest
        self._steps += 1
        self._done, self._expected = done, expected
        self._ticked = self._ticked or self._began
        if self._latest - self._ticked >= _TICK:
            self._ticked = self._latest
            _jobs.put(functools.partial(self._write, lambda _: None, None))

    def finish(self, wav: torch.Tensor) -> None:
        """The whole [n], which replaces what was heard where it is not the same."""
        _jobs.put(functools.partial(self._write, self._complete, wav.numpy()))

    def stop(self) -> None:
        """No more will come."""
        _jobs.put(functools.partial(self._write, self._end, STOPPED))

    def problems(self) -> tuple[str, ...]:
        """Why not all of it can be heard, for the info output. Waits a moment for what is still to be written."""
        settle(_SETTLING)
        return (self.problem,) if self.problem else ()

    def close(self) -> None:
        """Drops the file. Whoever still asks gets nothing."""
        _jobs.put(self._drop)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read(self, revision: int, start: int, stop: int) -> bytes | None:
        """Samples start..stop as far as they are there; None where they have been replaced or dropped since."""
        with self._lock:
            if revision != self.revision or self._file.closed:
                return None
            stop = min(stop, self._size // _WIDTH)
            if start >= stop:
                return b""
            self._file.seek(start * _WIDTH)
            return self._file.read((stop - start) * _WIDTH)

    def told(self, revision: int, outline: int) -> dict:
        """How it stands, as JSON takes it, without the first `outline` numbers of the outline where these still count.

        The outline: the peak of each frame, 0 to 255. piece: how many of the samples came at once and last. pace:
        seconds of each sequence that are spoken in a second. waited: seconds of each sequence that were spoken since
        something could be heard. done: seconds spoken so far, of all sequences. left: seconds until all is spoken, at
        the speed so far.
        """
        seconds = self._latest - self._began
        with self._lock:
            first = outline if revision == self.revision else 0
            return {
                "version": self.version,
                "revision": self.revision,
                "state": self.state,
                "problem": self.problem,
                "restarts": self.restarts,
                "samples": self._size // _WIDTH,
                "piece": self._piece // _WIDTH,
                "expected": self._expected / FRAME_RATE,
                "done": self._done / FRAME_RATE,
                "left": round(seconds * max(0, self._expected - self._done) / self._done, 1) if self._done else 0.0,
                "pace": round(self._steps / FRAME_RATE / seconds, 3) if seconds else 0.0,
                "waited": max(0, self._steps - self._heard) / FRAME_RATE,
                "first": first,
                "outline": bytes(self._outline[first:]).hex(),
            }

    def _write(self, change: Callable, what: object):
        with self._lock:
            if self._file.closed or self.state != SPEAKING:
                return
            try:
                change(what)
            except OSError as error:
                self._give_up(error)
            self.version += 1
        self._changed()

    def _give_up(self, error: OSError):
        """Ends the sound where the disk is full. What has been written can still be heard."""
        self.state = STOPPED
        self.problem = (
            f"The player stopped early because {self._path.parent} could not be written ({error.strerror or error}). "
            "The speech itself is complete. Free some disk space there."
        )

    def _append(self, wav: np.ndarray):
        data = pcm_bytes(torch.from_numpy(wav))
        self._file.seek(self._size)
        self._file.write(data)
        self._file.flush()
        self._size += len(data)
        self._piece = len(data)
        self._digest.update(data)
        self._draw(self._rest + data)

    def _draw(self, data: bytes, at_end: bool = False):
        frames, rest = divmod(len(data), FRAME * _WIDTH)
        samples = np.frombuffer(data, "<i2")
        whole = samples[: frames * FRAME].reshape(frames, FRAME)
        self._outline += _loudest(whole)
        self._rest = data[len(data) - rest :]
        if at_end and rest:
            self._outline += _loudest(samples[None, frames * FRAME :])

    def _restart(self, why: str):
        self.restarts = [*self.restarts, why]
        self.revision += 1
        self._clear()

    def _complete(self, wav: np.ndarray):
        digest = hashlib.blake2b()
        for start in range(0, len(wav), _STRETCH):
            digest.update(pcm_bytes(torch.from_numpy(wav[start : start + _STRETCH])))
        if digest.digest() != self._digest.digest():
            self.revision += 1
            self._clear()
            for start in range(0, len(wav), _STRETCH):
                self._append(wav[start : start + _STRETCH])
        self._end(COMPLETE)

    def _end(self, state: str):
        self._draw(self._rest, at_end=True)
        self._rest = b""
        self.state = state

    def _drop(self):
        with self._lock:
            self._file.close()
            with contextlib.suppress(OSError):  # ComfyUI empties the folder in the end
                self._path.unlink()


def settle(seconds: float) -> bool:
    """Waits until what has been asked for so far is written, or the seconds are over."""
    _writer()
    done = threading.Event()
    _jobs.put(done.set)
    return done.wait(seconds)


def _loudest(frames: np.ndarray) -> bytes:
    """The peak of each row of 16-bit samples, 0 to 255."""
    return (np.abs(frames.astype(np.int32)).max(1, initial=0) >> 7).clip(0, 255).astype(np.uint8).tobytes()


@functools.cache
def _writer() -> threading.Thread:
    """Does all jobs, in order; starts when the first sound is made."""

    def work():
        while True:
            _jobs.get()()

    thread = threading.Thread(target=work, name="higgs_tts live sound", daemon=True)
    thread.start()
    return thread
