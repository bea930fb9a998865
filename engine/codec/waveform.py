"""Sequences' codes to sound on the host, and the one schedule of windows."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate, chain, repeat

import torch

from ..core.closing import Closable
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..device.memory import PrivatePool
from .model import CONTEXT_FRAMES, EARLY_CONTEXTS, WINDOW_FRAMES, CodecDecoder
from .stream import Window, make_windows
from .window_graphs import WindowGraphs

# Frames per window. While streaming, a window must be ready before the earlier ones have been played. So window sizes
# may grow only as fast as decoding outpaces playback: on a CPU by a third to a half.
_FIRST_WINDOWS = (1, 2, 4, 8, 16, 25, 50)  # on a GPU
_STREAMED_WINDOW = 75  # afterwards: larger windows would be late, and captured hold more memory
_FIRST_CPU_WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 50)
_CLOSE = 2  # first windows whose frames are looked for at once: later ones come with more left to play, and in groups
_SHORT = 0.03  # seconds: with less left to play, a stream may run dry before its next window has come
GROUPS = (8, 4, 2, 1)  # windows decoded at once
_PATIENCE = 64  # polls after which an incomplete batch of windows is decoded
_NO_SAMPLES = torch.empty(0)
LENGTHS = tuple(frames + 2 * CONTEXT_FRAMES for frames in (25, _STREAMED_WINDOW, WINDOW_FRAMES))  # padded to, on a GPU
SINGLE_LENGTHS = LENGTHS[:-1]  # of windows that may be decoded alone


class Waveform(Closable):
    """Decodes the sounds of one session, window by window in the order in which windows fill up.

    graphs: on a GPU, what decodes windows there.
    together: windows decoded at once, on a GPU. Streamed ones go with those that are due at the same poll.
    serialize: as for SideStreamWindows.
    early: the first windows of a streamed sound wait for fewer frames, and are not exact.
    """

    def __init__(
        self,
        decoder: CodecDecoder,
        pool: PrivatePool,
        graphs: WindowGraphs | None = None,
        together: int = 1,
        serialize: bool = True,
        early: bool = False,
    ):
        self.clock: Callable[[], float] = time.monotonic  # seconds, by which streams are played
        self.windows = make_windows(decoder, pool, graphs, LENGTHS, serialize)
        self._is_cuda = pool.device.type == "cuda"
        sizes = _FIRST_WINDOWS if self._is_cuda else _FIRST_CPU_WINDOWS
        contexts = chain(EARLY_CONTEXTS if early else (), repeat(CONTEXT_FRAMES))
        # Frames of each of a streamed sound's first windows, and frames that must follow it.
        self.firsts = list(zip(sizes, contexts, strict=False))
        self.together = together
        self.given: set[Sound] = set()  # sounds with new samples; the session clears it
        self.awaited: set[Sound] = set()  # streamed sounds whose first window is being decoded
        self._due: list[tuple[Sound, Window]] = []  # streamed, for the next poll
        self._waiting: list[tuple[Sound, Window]] = []  # for a full group
        self._looks = 0  # polls since the first of them
        self._owners: deque[Sound] = deque()  # of the windows being decoded

    @property
    def size(self) -> int:
        """Frames per window."""
        return WINDOW_FRAMES if self.together > 1 else _STREAMED_WINDOW  # on a GPU, the latter are captured

    @property
    def first_frames(self) -> list[int]:
        """Frames of codes that each of a streamed sound's first windows needs."""
        ends = accumulate(size for size, _ in self.firsts)
        return [end + after for end, (_, after) in zip(ends, self.firsts[:_CLOSE], strict=False)]

    def sound(self, streamed: bool = False) -> Sound:
        """Return a new sound. streamed: its first windows are short, and the first one is waited for if it is alone."""
        return Sound(self, streamed)

    def submit(self, sound: Sound, codes: torch.Tensor, start: int, stop: int) -> None:
        """Decode frames start..stop of codes [T, K] into `sound`."""
        queue = self._due if sound.streamed else self._waiting
        queue.append((sound, Window(codes, start, stop)))
        if self.together == 1:
            self.poll(wait=sound in self.awaited)
        elif len(self._waiting) >= self.together:
            self._begin_waiting()

    def _begin_due(self):
        """Start decoding streamed windows, the shortest lead's first, those of its padded length with it."""
        leads = {sound: sound.lead for sound, _ in self._due}
        self._due.sort(key=lambda one: leads[one[0]])  # stable: each sound's stay in order
        while self._due:
            length, alike, seen = self.windows.padded(self._due[0][1]), [], set()
            for place, (sound, window) in enumerate(self._due):
                if sound not in seen and self.windows.padded(window) == length:
                    alike.append(place)
                seen.add(sound)
            rows = next(rows for rows in GROUPS if rows <= min(len(alike), self.together))
            part = [self._due[place] for place in alike[:rows]]
            self._due = [one for place, one in enumerate(self._due) if place not in alike[:rows]]
            self._begin(part, rows)

    def prepare(self) -> None:
        """Get ready for many streams: the first groups of their windows would keep all waiting until captured."""
        for length in reversed(SINGLE_LENGTHS):  # the shorter takes no more memory then
            for rows in (rows for rows in GROUPS if 1 < rows <= self.together):
                self.windows.capture(rows, length)

    def _begin_waiting(self):
        """Start decoding the waiting windows. A group that is not full has as many rows, so that all sum alike."""
        while self._waiting:
            part, self._waiting = self._waiting[: self.together], self._waiting[self.together :]
            self._begin(part, self.together)
        self._looks = 0

    def _begin(self, part: list[tuple[Sound, Window]], rows: int):
        try:
            self.windows.submit([window for _, window in part], rows)
        except torch.cuda.OutOfMemoryError:
            if rows == 1:
                raise
            self.together = 1
            for one in part:
                self._begin([one], 1)
        else:
            self._owners.extend(sound for sound, _ in part)

    def poll(self, wait: bool = False) -> None:
        """Start windows that are due, and pass finished ones to their sounds. wait: wait for the oldest window."""
        self._begin_due()
        if self._waiting:
            self._looks += 1
            if self.together == 1 or self._looks > _PATIENCE:
                self._begin_waiting()
        self._give(self.windows.poll(wait))

    def start(self) -> None:
        """Start decoding all windows there are."""
        self._begin_due()
        self._begin_waiting()

    def finish(self) -> None:
        """Decode all windows, and pass them to their sounds."""
        self.start()
        self._give(self.windows.finish())

    def _give(self, wavs: list[torch.Tensor]):
        for wav in wavs:
            sound = self._owners.popleft()
            sound.take(wav)
            self.given.add(sound)

    def _release(self) -> None:
        self.windows.close()  # waits for those under way


class Sound:
    """Sound of one sequence, decoded in windows whose sizes depend only on the frame index.

    Each window is decoded with CONTEXT_FRAMES on either side, so seams are exact, unless the first ones are early.
    Only that many decoded frames are kept.
    """

    def __init__(self, waveform: Waveform, streamed: bool):
        self._waveform, self.streamed = waveform, streamed
        self._firsts = deque(waveform.firsts if streamed else ())
        self._steady = min(waveform.size, _STREAMED_WINDOW) if streamed else waveform.size
        self._codes: list[torch.Tensor] = []  # [t, K] each, `_kept` and waiting frames together
        self._count = self._kept = 0  # frames of them, and those that have been decoded
        self._open = 0  # windows being decoded
        self._finished = self._has_samples = False
        self._fresh: list[torch.Tensor] = []  # windows that `new` has not returned yet
        self.returned = 0  # samples that `new` has returned
        self._sent, self._played = 0, 0.0  # samples that a listener has, and the time when they have been played
        self.error: HiggsError | None = None  # set if samples are not finite

    @property
    def is_complete(self) -> bool:
        """True if the whole sound is ready."""
        return self._finished and not self._open

    @property
    def lead(self) -> float:
        """Seconds that a listener has and has not played yet. 0 before the first sound, and if playback ran dry."""
        return max(0.0, self._played - self._waveform.clock())

    @property
    def is_short(self) -> bool:
        """True if a listener who hears it may run out of sound soon."""
        return self._sent > 0 and self.lead < _SHORT

    def deliver(self, samples: int) -> None:
        """Count its first samples that a listener now has."""
        if samples > self._sent:
            seconds = (samples - self._sent) / SAMPLE_RATE
            self._sent, self._played = samples, self._waveform.clock() + self.lead + seconds

    def push(self, codes: torch.Tensor) -> None:
        """Add the sequence's next codes [t, K], for `advance` to decode."""
        if count := codes.shape[0]:  # len() of a tensor is slow
            self._codes.append(codes)
            self._count += count

    def advance(self) -> bool:
        """Decode the next window if its codes have come, with those of its right context. False if they have not."""
        size, after = self._firsts[0] if self._firsts else (self._steady, CONTEXT_FRAMES)
        end = self._kept + size + after
        if self._count < end:
            return False
        if self._firsts:
            self._firsts.popleft()
        self._submit(torch.cat(self._codes), size, end)
        return True

    def _submit(self, codes: torch.Tensor, size: int, end: int):
        """Decode the window of `size` frames that follows the kept ones, with context up to `end`."""
        stop = self._kept + size
        self._open += 1
        if self.streamed and not self._has_samples:
            self._waveform.awaited.add(self)
        self._waveform.submit(self, codes[:end], self._kept, stop)
        self._kept = min(stop, CONTEXT_FRAMES)
        self._codes = [codes[stop - self._kept :].clone()]
        self._count -= stop - self._kept

    def finish(self) -> None:
        """Decode the remaining codes, at the end as one window. No more may follow."""
        while self.advance():
            pass
        if self._count > self._kept:
            self._submit(torch.cat(self._codes), self._count - self._kept, self._count)
        self._codes, self._count, self._finished = [], 0, True

    def take(self, wav: torch.Tensor) -> None:
        """Add the next window's sound [n] fp32 on the host, clamped to -1..1."""
        self._open -= 1
        self._has_samples = True
        self._waveform.awaited.discard(self)
        low, high = wav.aminmax()  # NaN if there is one
        if not math.isfinite(low + high):
            self.error = HiggsError("The model produced invalid audio (NaN). Load it with dtype fp32.")
        # A copy in either case, so that the pinned memory can be reused.
        self._fresh.append(wav.clone() if low >= -1 and high <= 1 else wav.clamp(-1.0, 1.0))

    def new(self) -> torch.Tensor:
        """Return the samples that follow those returned before, [n] fp32."""
        fresh, self._fresh = self._fresh, []
        wav = torch.cat(fresh) if len(fresh) > 1 else fresh[0] if fresh else _NO_SAMPLES
        self.returned += len(wav)
        return wav
