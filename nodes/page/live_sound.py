"""The growing sound of one run, for pages that play it: samples in a file, an outline and words in memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

from ...engine import (
    FRAME_RATE,
    SAMPLE_RATE,
    SpokenTurn,
    Word,
    estimate_words,
    mark_words,
    moved,
    pcm_bytes,
    wav_bytes,
    word_rows,
)

FRAME = SAMPLE_RATE // FRAME_RATE  # samples per number of the outline
SPEAKING, COMPLETE, STOPPED = "speaking", "complete", "stopped"
_WIDTH = 2  # bytes of a sample
_TICK = 1.0  # seconds between progress reports to readers if nothing else is new
_SETTLING = 5.0  # longest wait, in seconds, for a node's sound to be written
_STRETCH = 1 << 20  # samples of a finished waveform compared at a time
_OWN_FILE = "speech.wav"  # name of a result that the node has not saved

Result = Path | tuple[torch.Tensor, int]  # a saved file, or a wave [C, n] float32 and its Hz

_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()  # pending writes of all sounds


class LiveSound:
    """A waveform in the making. The node calls `hear` to `stop`, which never block: a thread writes.

    changed(): called in that thread whenever there is something new to read.
    """

    def __init__(self, path: Path, changed: Callable[[], None]):
        self._path, self._changed = path, changed
        self._own, self._kept = path.with_suffix(".wav"), 0  # the result's file, and its bytes
        self._lock = threading.Lock()  # guards file, outline and counters together
        self.state, self.problem = SPEAKING, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w+b")
        except OSError as error:
            self._file = io.BytesIO()
            self._give_up(error)
        self.version = 0  # counts every change
        self.revision = 0  # counts replacements of earlier samples
        self.edition = 0  # counts replacements of earlier words
        self._words: list[dict] = []  # of complete chunks
        self.restarts: list[str] = []  # reason for each time the first chunk was spoken again
        self.file: tuple[Path, str] | None = None  # the finished sound for a download, and its name there
        self._clear()
        self._began, self._latest, self._steps, self._done, self._expected = 0.0, 0.0, -1, 0, 0
        self._sample_step = 0  # step of the last samples
        self._ticked = 0.0  # time of the last progress report
        _writer()

    def _clear(self):
        self._file.seek(0)
        self._file.truncate()
        self._outline, self._rest, self._size, self._piece = bytearray(), b"", 0, 0
        self._digest = hashlib.blake2b()

    def hear(self, wav: torch.Tensor) -> None:
        """Append samples, [n] float32 on the host."""
        self._sample_step = self._steps
        _jobs.put(functools.partial(self._write, self._append, wav.numpy()))

    def spell(self, chunk: SpokenTurn, wav: torch.Tensor) -> None:
        """Append the words of a complete chunk, with estimated times. wav: its audio [n]."""
        _jobs.put(functools.partial(self._write, self._spell, (chunk, wav)))

    def begin_anew(self, why: str) -> None:
        """Discard everything so far."""
        _jobs.put(functools.partial(self._write, self._restart, why))

    def step(self, done: int, expected: int) -> None:
        """Report, after every step of speaking, the frames so far and the expected total."""
        self._latest = time.monotonic()
        self._began = self._began or self._latest
        self._steps += 1
        self._done, self._expected = done, expected
        self._ticked = self._ticked or self._began
        if self._latest - self._ticked >= _TICK:
            self._ticked = self._latest
            _jobs.put(functools.partial(self._write, lambda _: None, None))

    def finish(self, wav: torch.Tensor, words: Iterable[Word] = (), result: Result | None = None) -> None:
        """Set the whole waveform [n] and its words, replacing earlier ones that differ. result: for a download."""
        _jobs.put(functools.partial(self._write, self._complete, (wav.numpy(), _rows(words), result)))

    def stop(self) -> None:
        """End the sound."""
        _jobs.put(functools.partial(self._write, self._end, STOPPED))

    def problems(self) -> tuple[str, ...]:
        """Return why parts cannot be played, for the info output. Waits briefly for pending writes."""
        settle(_SETTLING)
        return (self.problem,) if self.problem else ()

    def close(self) -> None:
        """Drop the file. Later readers get nothing."""
        _jobs.put(self._drop)

    @property
    def size(self) -> int:
        """Bytes of its files, without one that the node saved."""
        return self._size + self._kept

    def read(self, revision: int, start: int, stop: int) -> bytes | None:
        """Return samples start..stop as far as they exist. None if they have been replaced or dropped."""
        with self._lock:
            if revision != self.revision or self._file.closed:
                return None
            stop = min(stop, self._size // _WIDTH)
            if start >= stop:
                return b""
            self._file.seek(start * _WIDTH)
            return self._file.read((stop - start) * _WIDTH)

    def told(self, revision: int, outline: int, edition: int = 0, words: int = 0) -> dict:
        """Return the state for JSON, without what the reader has of this outline and these words.

        revision, edition: those of the reader's `outline` numbers and `words`. first, known: how many of them hold.
        outline: peak of each frame, 0 to 255. piece: number of samples in the last delivery. pace: seconds of each
        sequence spoken per second. speed: of all together. waited: seconds of each sequence spoken since the last
        samples. done: seconds spoken so far, of all sequences. left: seconds until all is spoken, at the speed so far.
        """
        seconds = self._latest - self._began
        with self._lock:
            first = outline if revision == self.revision else 0
            known = words if edition == self.edition else 0
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
                "speed": round(self._done / FRAME_RATE / seconds, 3) if seconds else 0.0,
                "pace": round(self._steps / FRAME_RATE / seconds, 3) if seconds else 0.0,
                "waited": max(0, self._steps - self._sample_step) / FRAME_RATE,
                "first": first,
                "outline": bytes(self._outline[first:]).hex(),
                "file": self.file[1] if self.file else "",
                "edition": self.edition,
                "known": known,
                "words": self._words[known:],
            }

    def _write(self, change: Callable, value: object):
        with self._lock:
            if self._file.closed or self.state != SPEAKING:
                return
            try:
                change(value)
            except OSError as error:
                self._give_up(error)
            self.version += 1
        self._changed()

    def _give_up(self, error: OSError):
        """End the sound if the disk is full. What has been written can still be played."""
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

    def _spell(self, value: tuple[SpokenTurn, torch.Tensor]):
        chunk, wav = value
        words = estimate_words(wav, replace(chunk, start=0, stop=len(wav)))
        first = self._words[-1]["sentence"] if self._words else 0
        self._words += _rows(mark_words(moved(words, chunk.start / SAMPLE_RATE), [chunk], first))

    def _restart(self, why: str):
        self.restarts = [*self.restarts, why]
        self.revision += 1
        self._replace([])
        self._clear()

    def _replace(self, words: list[dict]):
        if words != self._words:
            self._words = words
            self.edition += 1

    def _complete(self, value: tuple[np.ndarray, list[dict], Result | None]):
        wav, words, result = value
        self._replace(words)
        digest = hashlib.blake2b()
        for start in range(0, len(wav), _STRETCH):
            digest.update(pcm_bytes(torch.from_numpy(wav[start : start + _STRETCH])))
        if digest.digest() != self._digest.digest():
            self.revision += 1
            self._clear()
            for start in range(0, len(wav), _STRETCH):
                self._append(wav[start : start + _STRETCH])
        if isinstance(result, Path):
            self.file = result, result.name
        elif result is not None:
            data = wav_bytes(result[0].detach().float().cpu(), result[1])
            self._own.write_bytes(data)
            self.file, self._kept = (self._own, _OWN_FILE), len(data)
        self._end(COMPLETE)

    def _end(self, state: str):
        self._draw(self._rest, at_end=True)
        self._rest = b""
        self.state = state

    def _drop(self):
        with self._lock:
            self._file.close()
            for path in (self._path, self._own):
                with contextlib.suppress(OSError):  # ComfyUI empties the folder in the end
                    path.unlink()


def settle(seconds: float) -> bool:
    """Wait until all pending writes are done, or the seconds are over. True if they are done."""
    _writer()
    done = threading.Event()
    _jobs.put(done.set)
    return done.wait(seconds)


def _rows(words: Iterable[Word]) -> list[dict]:
    """Return words for the page, each with the number of its sentence, from 1, as the widget `retakes` takes it."""
    words = list(words)
    return [{**row, "sentence": word.sentence + 1} for row, word in zip(word_rows(words), words, strict=True)]


def _loudest(frames: np.ndarray) -> bytes:
    """Return the peak of each row of 16-bit samples, 0 to 255."""
    return (np.abs(frames.astype(np.int32)).max(1, initial=0) >> 7).clip(0, 255).astype(np.uint8).tobytes()


@functools.cache
def _writer() -> threading.Thread:
    """Start the thread that does all writes in order. Called when the first sound is made."""

    def work():
        while True:
            _jobs.get()()

    thread = threading.Thread(target=work, name="higgs_tts live sound", daemon=True)
    thread.start()
    return thread
