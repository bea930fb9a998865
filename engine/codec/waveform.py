"""Codes in the text's order to sound on the host, and the one schedule of windows. Knows no text and no decode step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import torch

from ..config import SAMPLE_RATE
from ..errors import HiggsError
from ..memory import PrivatePool
from .model import CONTEXT_FRAMES, WINDOW_FRAMES, CodecDecoder
from .stream import make_windows

# Frames a window.
_FIRST_WINDOWS = (1, 2, 4, 8, 16, 25, 50)  # where somebody listens
_STREAMED_WINDOW = 100  # then, on a GPU: more would be heard late, fewer cost it nearly as much
_CPU_WINDOW = 25
LENGTHS = tuple(frames + 2 * CONTEXT_FRAMES for frames in (_CPU_WINDOW, _STREAMED_WINDOW, WINDOW_FRAMES))  # as padded


class Waveform:
    """The sound of one request, decoded in windows whose sizes depend on the frames' numbers alone.

    A window is decoded with CONTEXT_FRAMES on either side, which makes seams exact; of what was decoded only that many
    frames are kept. `streamed`: somebody listens, so the first windows are short and the first sound is waited for.
    """

    def __init__(self, decoder: CodecDecoder, pool: PrivatePool, streamed: bool):
        self.windows = make_windows(decoder, pool, LENGTHS)
        self._later = WINDOW_FRAMES if pool.device.type == "cuda" else _CPU_WINDOW
        self._steady = min(self._later, _STREAMED_WINDOW) if streamed else self._later
        self._streamed = streamed
        self._sizes = deque(_FIRST_WINDOWS if streamed else (self._steady,))
        self._codes: torch.Tensor | None = None  # [kept + waiting, K]
        self._kept = 0  # frames of _codes that have been decoded
        self._size = self._missing = 0  # frames of the next window, and how many codes it still waits for
        self._wavs: list[torch.Tensor] = []

    @property
    def low_latency_frames(self) -> int:
        """Frames that the first sound takes, while somebody waits for it; else 0."""
        return CONTEXT_FRAMES + _FIRST_WINDOWS[0] if self._streamed and not self._wavs else 0

    def push(self, codes: torch.Tensor, is_first: bool) -> Iterator[torch.Tensor]:
        """codes [t, K] of the text's first sequence, or of a later one; yields after each window.

        Yields wav [n] fp32 in -1..1, all that has become final since; n may be 0. Raises HiggsError for sound that is
        not finite.
        """
        while len(codes):
            if not self._missing:
                self._begin(is_first)
            new, codes = codes[: self._missing], codes[self._missing :]
            self._codes = new.clone() if self._codes is None else torch.cat([self._codes, new])
            self._missing -= len(new)
            if not self._missing:
                self._submit(self._codes, self._size)
                yield self._take(self.windows.poll(wait=self.low_latency_frames > 0))

    def _begin(self, is_first: bool):
        """The next window; the first one also waits for what its frames need on their right."""
        self._size = self._sizes.popleft() if self._sizes else self._steady if is_first else self._later
        self._missing = self._size + (CONTEXT_FRAMES if self._codes is None else 0)

    def _submit(self, codes: torch.Tensor, frames: int):
        stop = self._kept + frames
        self.windows.submit(codes, self._kept, stop)
        self._kept = min(stop, CONTEXT_FRAMES)
        self._codes = codes[stop - self._kept :].clone()

    def poll(self) -> torch.Tensor:
        """wav [n] that has become final since, for whoever listens; nothing where nobody does."""
        return self._take(self.windows.poll() if self._streamed else [])

    def _take(self, wavs: list[torch.Tensor]) -> torch.Tensor:
        if not wavs:  # as after most steps
            return torch.empty(0)
        wav = torch.cat(wavs)
        if not wav.isfinite().all():
            raise HiggsError("The model produced invalid audio (NaN). Load it with dtype fp32.")
        self._wavs.append(wav.clamp_(-1.0, 1.0))
        return wav

    def pause(self, seconds: float) -> torch.Tensor:
        """Ends what was said, then silence: zeros to the sample. What follows begins anew; wav [n] as `poll`."""
        self._submit_rest()
        self._codes, self._kept, self._missing = None, 0, 0
        self.windows.append(torch.zeros(round(seconds * SAMPLE_RATE)))
        return self.poll()

    def finish(self) -> torch.Tensor:
        """The rest as one window -> wav [n] that had not been given yet."""
        self._submit_rest()
        return self._take(self.windows.finish())

    def _submit_rest(self):
        if self._codes is not None and len(self._codes) > self._kept:
            self._submit(self._codes, len(self._codes) - self._kept)

    def whole(self) -> torch.Tensor:
        """All of it so far, [T] fp32."""
        return torch.cat([torch.empty(0), *self._wavs])

    def close(self) -> None:
        """Lets go of the decoder; safe to call twice."""
        with contextlib.suppress(AttributeError):  # closed before
            del self.windows
