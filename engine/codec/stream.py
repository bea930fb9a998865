"""The stream of sound beside the talker: windows of the codec on a CUDA stream of their own. Knows no talker."""

from __future__ import annotations

from collections import deque

import torch

from ..memory import to_device
from .model import LENGTHS, CodecDecoder, StreamDecoder


class SideStreamDecoder(StreamDecoder):
    """A StreamDecoder that waits in `finish` alone: windows run on `stream`, results come to the host by themselves.

    `push` starts the windows that its codes complete; it and `poll` give what has become ready, in order. `in_turn`:
    a window begins when the work queued so far on the current stream is done, and what is queued later waits for it.
    A kernel that needs the whole device to itself loses more by windows that slip in between than by waiting for one.
    """

    in_turn = True

    def __init__(self, decoder: CodecDecoder, stream: torch.cuda.Stream, **options):
        super().__init__(decoder, **options)
        self._stream = stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))  # the weights' last copies

    def reset(self) -> None:
        super().reset()
        self._windows: deque = deque()  # under way, as `_begin` gives them

    def push(self, codes: torch.Tensor) -> torch.Tensor:
        """codes [k, N] int64 on the host -> wav [960 * frames that became ready], fp32 on the host."""
        super().push(codes)
        return self.poll()

    def poll(self, wait: bool = False) -> torch.Tensor:
        """What has become ready since the last call. `wait`: and the oldest window, which is waited for."""
        ready = [torch.empty(0)]
        if wait and self._windows:
            self._windows[0][0].synchronize()
        while self._windows and self._windows[0][0].query():
            ready.append(self._windows.popleft()[1])
        return torch.cat(ready)

    def finish(self) -> torch.Tensor:
        """The rest of the stream, then forgets it."""
        windows = self._windows
        super().finish()  # forgets the windows after it has added the last ones to them
        if windows:
            windows[-1][0].synchronize()
        return torch.cat([torch.empty(0), *(wav for _, wav in windows)])

    def _decode(self, codes: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        self._windows.append(self._begin(codes, start, stop))
        return codes.new_empty(0, dtype=torch.float32)

    def _begin(self, codes: torch.Tensor, start: int, stop: int) -> tuple:
        """Starts a window: (event, wav that is there once the event is)."""
        talker = torch.cuda.current_stream(self._stream.device)
        if self.in_turn:
            self._stream.wait_stream(talker)
        with torch.cuda.stream(self._stream):
            wav = super()._decode(to_device(codes, self._stream.device), start, stop)
            host = torch.empty(wav.shape, dtype=wav.dtype, pin_memory=True)
            host.copy_(wav, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        if self.in_turn:
            talker.wait_event(event)
        return event, host


def make_stream(decoder: CodecDecoder, pool, **options) -> StreamDecoder:
    """A stream of sound for one utterance: beside the talker on a GPU, in its turn elsewhere."""
    if pool.device.type != "cuda":
        return StreamDecoder(decoder, **options)
    return SideStreamDecoder(decoder, pool.side_stream(), lengths=LENGTHS, **options)
