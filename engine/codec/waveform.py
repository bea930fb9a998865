"""Codes in the text's order to sound on the host. Knows no text and nothing of who makes the codes."""

from __future__ import annotations

from collections import deque

import torch

from ..errors import HiggsError
from .model import CONTEXT_FRAMES, EMIT_FRAMES, STEADY_FRAMES, WINDOW_FRAMES
from .stream import make_stream

_EARLY = (1, 2, 4, 8, 16, 25, 50)  # frames of the first windows where somebody listens


class Waveform:
    """Codes in the text's order -> wav on the host, in windows that depend on the frames' numbers alone."""

    def __init__(self, loaded, on_audio):
        # With emit=1, what is pushed at once makes one window.
        self.stream = make_stream(loaded.decoder, loaded.pool, emit=1)
        self._later = WINDOW_FRAMES if loaded.pool.device.type == "cuda" else EMIT_FRAMES
        self._steady = self._later if on_audio is None else min(self._later, STEADY_FRAMES)
        self._on_audio = on_audio
        self._early = deque(_EARLY if on_audio is not None else (self._steady,))
        self.wanted = CONTEXT_FRAMES + self._early[0] if on_audio is not None else 0  # frames until somebody hears
        self._context = CONTEXT_FRAMES
        self._next, self._size = [], 0  # pieces of the next window, and how many frames it takes
        self._wavs: list[torch.Tensor] = []

    def push(self, codes: torch.Tensor, is_first: bool, on_window):
        """codes [k, N] of the text's first line, or of a later one; `on_window()` is called after each window."""
        while len(codes):
            if not self._next:
                self._size = self._window(is_first)
            self._next.append(codes[: self._size])
            self._size -= len(self._next[-1])
            codes = codes[len(self._next[-1]) :]
            if not self._size:
                self._decode()
                on_window()

    def _window(self, is_first: bool) -> int:
        """Frames of the next window; the first one waits for what its frames need on their right."""
        if self._early:
            context, self._context = self._context, 0
            return context + self._early.popleft()
        return self._steady if is_first else self._later

    def _decode(self):
        codes, self._next = torch.cat(self._next), []
        self._give(self.stream.push(codes))
        if self.wanted:  # else the loop's next look, some steps later, would be the first to find it
            self._give(self.stream.poll(wait=True))

    def poll(self):
        """Hands on what has become final since; needed only where somebody listens."""
        if self._on_audio is not None:
            self._give(self.stream.poll())

    def _give(self, wav: torch.Tensor):
        if not len(wav):
            return
        if not wav.isfinite().all():
            raise HiggsError("The model produced invalid audio (NaN). Load it with dtype fp32.")
        self._wavs.append(wav.clamp_(-1.0, 1.0))
        self.wanted = 0
        if self._on_audio is not None:
            self._on_audio(wav)

    def close(self):
        """Lets go of the decoder and of whoever listens."""
        self.stream = self._on_audio = None

    def finish(self) -> torch.Tensor:
        """The rest -> the whole wav [T]."""
        if self._next:
            self.stream.emit = 2 * WINDOW_FRAMES  # more than there can be: the rest is one window with the end
            self._decode()
        self._give(self.stream.finish())
        return torch.cat([torch.empty(0), *self._wavs])
