"""The codec's windows as captured CUDA graphs: one launch each instead of some three hundred."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from ..core.config import FRAME_SAMPLES
from ..cuda.nvrtc import trim_graph_memory
from ..device.graph import Graph, GraphError, MemoryId, capture, capturing, same_bits
from ..device.memory import PrivatePool, send, to_device
from .model import CodecDecoder, pack

log = logging.getLogger("higgs_tts")


class Captured(NamedTuple):
    """A graph with its input and its output, which the next replay overwrites."""

    graph: Graph
    packed: torch.Tensor  # see `pack`
    wav: torch.Tensor  # [rows, 960 * length]


class WindowGraphs:
    """Decodes windows, by a captured graph for each shape (rows, padded length) of `capture`.

    Shapes of several rows are captured when they come for the second time. All graphs share their working memory, which
    `close` frees. `note` says why a capture failed: windows are then launched op by op.

    captures: False decodes all windows op by op.
    """

    def __init__(self, decoder: CodecDecoder, pool: PrivatePool, captures: bool):
        self._decoder, self._pool, self._captures = decoder, pool, captures
        self._graphs: dict[tuple[int, int], Captured] = {}
        self._seen: set[tuple[int, int]] = set()
        self._memory: MemoryId = None
        self.note = ""

    def new(self) -> WindowGraphs:
        return WindowGraphs(self._decoder, self._pool, self._captures)

    def decode(self, clips: list[torch.Tensor], rows: int, length: int) -> torch.Tensor:
        """Decode clips of codes [T, K] on the host, on the current stream -> [rows, 960 * length] on the device.

        The next call may overwrite the result on the device.
        """
        shape, packed = (rows, length), pack(clips, rows, length)
        if rows > 1 and shape in self._seen:
            self.capture(*shape)
        self._seen.add(shape)
        captured = self._graphs.get(shape)
        if captured is None:
            return self._decoder.decode_packed(to_device(packed, self._pool.device))
        send(packed, captured.packed)
        captured.graph.replay()
        return captured.wav

    def capture(self, rows: int, length: int) -> None:
        """Capture a shape, unless it is there. Waits for the device."""
        if (rows, length) in self._graphs or self.note or not self._captures:
            return
        stream = self._pool.capture_stream()
        try:
            self._pool.hold_workspaces()
            with capturing(stream), torch.cuda.stream(stream), torch.no_grad():
                self._graphs[rows, length] = self._captured(rows, length, stream)
        except GraphError as error:
            self.note = f"CUDA graphs are off for the codec, so speech begins later: {error}."
            log.info("Higgs TTS: %s", self.note)  # a session's groups have no other place to say so

    def _captured(self, rows: int, length: int, stream: torch.cuda.Stream) -> Captured:
        """Capture a shape, and prove it: an eager run and a replay must agree bit for bit."""
        codes = torch.arange(length * 8).view(length, 8) * 7 % self._decoder.config.codebook_size
        packed = to_device(pack([codes] * rows, rows, length), self._pool.device)
        wav = torch.empty(rows, length * FRAME_SAMPLES, device=self._pool.device)

        def work():
            wav.copy_(self._decoder.decode_packed(packed))

        work()
        eager = wav.clone()
        torch.cuda.empty_cache()  # what eager runs took would be there twice
        graph = capture(work, stream, self._memory)
        self._memory = graph.pool()
        wav.zero_()
        graph.replay()
        if not same_bits(wav, eager):
            graph.reset()
            raise GraphError(f"{rows} replayed windows of {length} frames differ from eager ones")
        return Captured(graph, packed, wav)

    def sizes(self) -> list[int]:
        """Return the bytes of what the graphs hold on the device, about."""
        frames = [rows * length for rows, length in self._graphs]
        return [self._decoder.config.decode_bytes(max(frames))] if frames else []

    def close(self) -> None:
        """Drop all graphs. Safe to call twice. No window may be under way on the device."""
        for captured in self._graphs.values():
            captured.graph.reset()
        if self._graphs and torch.cuda.get_allocator_backend() != "native":
            trim_graph_memory(self._pool.device.index)
        self._graphs.clear()
        self._seen.clear()
        self._memory = None
