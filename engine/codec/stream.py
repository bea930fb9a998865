"""Where the codec's windows are decoded: at once, or on a CUDA stream beside the talker."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from ..core.config import FRAME_SAMPLES
from ..device.memory import PrivatePool, to_device
from .model import CodecDecoder


class Window(NamedTuple):
    """Frames start..stop of codes [T, K], on the host, become sound; the rest is context."""

    codes: torch.Tensor
    start: int
    stop: int

    @property
    def samples(self) -> slice:
        """Its sound, of that of all its codes."""
        return slice(self.start * FRAME_SAMPLES, self.stop * FRAME_SAMPLES)


class InlineWindows:
    """Decodes windows as they are submitted, each by itself."""

    serialize = True  # no other way here

    def __init__(self, decoder: CodecDecoder):
        self._decoder = decoder
        self._ready: list[torch.Tensor] = []

    def submit(self, windows: list[Window], rows: int = 1) -> None:
        """rows: windows that are decoded together, of which some may be missing."""
        for codes, start, stop in windows:
            self._ready.append(self._decoder.decode_span(codes.T[None], start, stop)[0].to(codes.device))

    def poll(self, wait: bool = False) -> list[torch.Tensor]:
        """wav [960 * frames] fp32 on the host of the windows that are ready, in order, each given once.

        wait: and of the oldest one, which is waited for.
        """
        ready, self._ready = self._ready, []
        return ready

    def finish(self) -> list[torch.Tensor]:
        """The rest of them, waited for."""
        return self.poll()


class SideStreamWindows:
    """Decodes windows on `stream`; results come to the host by themselves, and only `finish` waits.

    serialize: a window begins when the work queued so far on the current stream is done, and what is queued later
    waits for it. The cooperative decode kernel needs every SM, so interleaved windows cost more than serializing them.
    """

    serialize = True

    def __init__(self, decoder: CodecDecoder, stream: torch.cuda.Stream, lengths: tuple[int, ...]):
        self.decoder, self._stream, self._lengths = decoder, stream, lengths
        # (event, sounds that are there once the event is)
        self._batches: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        stream.wait_stream(torch.cuda.current_stream(stream.device))  # the weights' last copies

    def submit(self, windows: list[Window], rows: int = 1) -> None:
        """As `InlineWindows.submit`. Raises torch.OutOfMemoryError, and then none of them is under way."""
        self._batches.append(self.begin(windows, rows))

    def poll(self, wait: bool = False) -> list[torch.Tensor]:
        """As `InlineWindows.poll`."""
        ready = []
        if wait and self._batches:
            self._batches[0][0].synchronize()
        while self._batches and self._batches[0][0].query():
            ready += self._batches.popleft()[1]
        return ready

    def finish(self) -> list[torch.Tensor]:
        """As `InlineWindows.finish`."""
        if self._batches:
            self._batches[-1][0].synchronize()
        rest = [wav for _, wavs in self._batches for wav in wavs]
        self._batches.clear()
        return rest

    def begin(self, windows: list[Window], rows: int) -> tuple[torch.cuda.Event, list[torch.Tensor]]:
        """Queues windows: their sounds on the host, there once the event is."""
        current = torch.cuda.current_stream(self._stream.device)
        if self.serialize:
            self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            wavs = [self._to_host(wav) for wav in self.decode(windows, rows)]
            event = torch.cuda.Event()
            event.record()
        if self.serialize:
            current.wait_event(event)
        return event, wavs

    def decode(self, windows: list[Window], rows: int) -> list[torch.Tensor]:
        """Their sounds on the device."""
        if rows > 1:
            wavs = self.decoder.decode_clips([window.codes for window in windows], rows, self._lengths[-1])
            return [wav[window.samples] for wav, window in zip(wavs, windows, strict=False)]
        (window,) = windows
        codes = to_device(window.codes, self._stream.device).T[None]
        return [self.decoder.decode_span(codes, window.start, window.stop, lengths=self._lengths)[0]]

    @staticmethod
    def _to_host(wav: torch.Tensor) -> torch.Tensor:
        return torch.empty(wav.shape, dtype=wav.dtype, pin_memory=True).copy_(wav, non_blocking=True)


def make_windows(
    decoder: CodecDecoder, pool: PrivatePool, lengths: tuple[int, ...]
) -> InlineWindows | SideStreamWindows:
    """Windows of one request: on the pool's side stream on a GPU, at once elsewhere.

    lengths: what a GPU pads windows to, because libraries prepare themselves for every new length; the longest last.
    """
    if pool.device.type != "cuda":
        return InlineWindows(decoder)
    return SideStreamWindows(decoder, pool.side_stream(), lengths)
