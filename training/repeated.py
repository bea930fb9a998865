"""Work captured into a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Repeated:
    """Captures work into a CUDA graph at its fourth call, and replays it from then on. Runs it plainly on a CPU."""

    def __init__(self, work: Callable[[], None]):
        self.work, self.calls, self.graph = work, 0, None
        self.stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def __call__(self, device: str) -> None:
        self.calls += 1
        if not device.startswith("cuda"):
            self.work()
        elif self.calls <= 3:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.work()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.graph is None:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.work()
            self.graph.replay()
