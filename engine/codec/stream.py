"""Decoding of the codec's windows: inline, or on a CUDA stream beside the talker."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from ..core.config import FRAME_SAMPLES
from ..device.memory import PrivatePool, end_of_work, to_host
from .model import CodecDecoder
from .window_graphs import WindowGraphs


class Window(NamedTuple):
    """Frames start..stop of codes [T, K] on the host, to be decoded. The other frames are context."""

    codes: torch.Tensor
    start: int
    stop: int

    @property
    def samples(self) -> slice:
        """Samples of the window within the sound of all its codes."""
        return slice(self.start * FRAME_SAMPLES, self.stop * FRAME_SAMPLES)


class InlineWindows:
    """Decodes each window when it is submitted."""

    def __init__(self, decoder: CodecDecoder):
        self._decoder = decoder
        self._ready: list[torch.Tensor] = []

    def padded(self, window: Window) -> int:
        """Return the length that a window is padded to: its own."""
        return len(window.codes)

    def submit(self, windows: list[Window], rows: int = 1) -> None:
        """Decode windows. rows: batch size, which may exceed the number of windows."""
        for codes, start, stop in windows:
            self._ready.append(self._decoder.decode_span(codes.T[None], start, stop)[0].to(codes.device))

    def poll(self, wait: bool = False) -> list[torch.Tensor]:
        """Return the sound of windows that are ready, wav [960 * frames] fp32 on the host, in order, each once.

        wait: wait for the oldest window.
        """
        ready, self._ready = self._ready, []
        return ready

    def finish(self) -> list[torch.Tensor]:
        """Wait for the remaining windows and return their sound."""
        return self.poll()

    def capture(self, rows: int, length: int) -> None:
        """Do nothing: windows are decoded op by op."""

    def close(self) -> None:
        """Do nothing: it holds nothing on a device."""


class SideStreamWindows:
    """Decodes windows on a side stream and copies results to the host asynchronously.

    lengths: frames that a window is padded to, the smallest that fits. Libraries need set-up for every new length.
    graphs: of single windows. Several are captured for this session alone.
    serialize: a window starts after the work already queued on the current stream, and later work waits for it. The
    cooperative decode kernel needs every SM, so overlapping windows with it costs more than serializing them.
    """

    def __init__(
        self, graphs: WindowGraphs, stream: torch.cuda.Stream, lengths: tuple[int, ...], serialize: bool = True
    ):
        self._graphs, self._groups, self._stream, self.lengths = graphs, graphs.new(), stream, lengths
        self._serialize = serialize
        # (event, sounds that are complete after the event)
        self._batches: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        stream.wait_stream(torch.cuda.current_stream(stream.device))  # for copies of the weights

    def submit(self, windows: list[Window], rows: int = 1) -> None:
        """Queue windows, like `InlineWindows.submit`. On torch.OutOfMemoryError, none of them is queued."""
        self._batches.append(self.begin(windows, rows))

    def poll(self, wait: bool = False) -> list[torch.Tensor]:
        """Return finished windows, like `InlineWindows.poll`."""
        ready = []
        if wait and self._batches:
            self._batches[0][0].synchronize()
        while self._batches and self._batches[0][0].query():
            ready += self._batches.popleft()[1]
        return ready

    def finish(self) -> list[torch.Tensor]:
        """Wait for the remaining windows, like `InlineWindows.finish`."""
        if self._batches:
            self._batches[-1][0].synchronize()
        rest = [wav for _, wavs in self._batches for wav in wavs]
        self._batches.clear()
        return rest

    def padded(self, window: Window) -> int:
        """Return the length that a window is padded to."""
        return min(length for length in self.lengths if length >= len(window.codes))

    def begin(self, windows: list[Window], rows: int) -> tuple[torch.cuda.Event, list[torch.Tensor]]:
        """Queue windows. Returns an event, and their sounds on the host, complete after the event."""
        current = torch.cuda.current_stream(self._stream.device)
        if self._serialize:
            self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graphs, length = self._groups if rows > 1 else self._graphs, max(map(self.padded, windows))
            wavs = graphs.decode([window.codes for window in windows], rows, length)
            sounds = [to_host(wav[window.samples]) for wav, window in zip(wavs, windows, strict=False)]
            event = end_of_work()
        if self._serialize:
            current.wait_event(event)
        return event, sounds

    def capture(self, rows: int, length: int) -> None:
        """Capture groups of so many windows now, and not when they come for the second time."""
        with torch.cuda.stream(self._stream):
            self._groups.capture(rows, length)

    def close(self) -> None:
        """Wait for the windows under way, and free the groups' graphs. Safe to call twice."""
        self._stream.synchronize()
        self._groups.close()


def make_windows(
    decoder: CodecDecoder, pool: PrivatePool, graphs: WindowGraphs | None, lengths: tuple[int, ...], serialize: bool
) -> InlineWindows | SideStreamWindows:
    """Return the window decoder of one session: on the pool's side stream on a GPU, inline elsewhere."""
    if graphs is None:
        return InlineWindows(decoder)
    return SideStreamWindows(graphs, pool.side_stream(), lengths, serialize)
