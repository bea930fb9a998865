"""Where the codec's windows are decoded: at once, or on a CUDA stream beside the talker. Knows no talker."""

from __future__ import annotations

from collections import deque

import torch

from ..memory import PrivatePool, to_device
from .model import CodecDecoder


class InlineWindows:
    """Decodes each window as it is submitted."""

    serialize = True  # no other way here

    def __init__(self, decoder: CodecDecoder):
        self._decoder = decoder
        self._ready: list[torch.Tensor] = []

    def submit(self, codes: torch.Tensor, start: int, stop: int) -> None:
        """Frames start..stop of codes [T, K] are to become sound."""
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
        # (event, wav that is there once the event is)
        self._windows: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()
        stream.wait_stream(torch.cuda.current_stream(stream.device))  # the weights' last copies

    def submit(self, codes: torch.Tensor, start: int, stop: int) -> None:
        """As `InlineWindows.submit`, codes on the host."""
        self._windows.append(self.begin(codes, start, stop))

    def poll(self, wait: bool = False) -> list[torch.Tensor]:
        """As `InlineWindows.poll`."""
        ready = []
        if wait and self._windows:
            self._windows[0][0].synchronize()
        while self._windows and self._windows[0][0].query():
            ready.append(self._windows.popleft()[1])
        return ready

    def finish(self) -> list[torch.Tensor]:
        """As `InlineWindows.finish`."""
        if self._windows:
            self._windows[-1][0].synchronize()
        rest = [wav for _, wav in self._windows]
        self._windows.clear()
        return rest

    def begin(self, codes: torch.Tensor, start: int, stop: int) -> tuple[torch.cuda.Event, torch.Tensor]:
        """Queues a window: its sound on the host, there once the event is."""
        current = torch.cuda.current_stream(self._stream.device)
        if self.serialize:
            self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            codes = to_device(codes, self._stream.device)
            wav = self.decoder.decode_span(codes.T[None], start, stop, lengths=self._lengths)[0]
            host = torch.empty(wav.shape, dtype=wav.dtype, pin_memory=True)
            host.copy_(wav, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        if self.serialize:
            current.wait_event(event)
        return event, host


def make_windows(
    decoder: CodecDecoder, pool: PrivatePool, lengths: tuple[int, ...]
) -> InlineWindows | SideStreamWindows:
    """Windows of one request: on the pool's side stream on a GPU, at once elsewhere.

    lengths: what a GPU pads windows to, because libraries prepare themselves for every new length.
    """
    if pool.device.type != "cuda":
        return InlineWindows(decoder)
    return SideStreamWindows(decoder, pool.side_stream(), lengths)
