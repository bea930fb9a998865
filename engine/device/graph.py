"""Capture of CUDA graphs: decode steps, prompts and the codec's windows."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .collection import uncollected
from .memory import pools_stay

HEADROOM = 64 << 20  # bytes the driver may need for a graph; running out in instantiation can end the process
_one_at_a_time = threading.Lock()
Graph = torch.cuda.CUDAGraph
MemoryId = Any  # torch gives the type no public name


class GraphError(RuntimeError):
    """Work could not be captured, or its replay differs from the eager run. Keeps the first line of the reason."""

    def __init__(self, reason: str):
        super().__init__(reason.strip().partition("\n")[0])


@contextlib.contextmanager
def capturing(stream: torch.cuda.Stream) -> Iterator[None]:
    """Allow captures on `stream`, one engine's at a time. Raises GraphError if one fails."""
    device = stream.device
    free = torch.cuda.mem_get_info(device)[0]
    if free < HEADROOM:
        raise GraphError(f"only {free >> 20} MB of device memory are free")
    # Collecting another engine would sync the device, which a capture forbids.
    with _one_at_a_time, uncollected(), pools_stay():
        try:
            stream.wait_stream(torch.cuda.current_stream(device))
            yield
        except GraphError:
            raise
        except RuntimeError as error:  # OutOfMemoryError is one
            traceback.clear_frames(error.__traceback__)  # their tensors would stay until a collection
            # From Python 3.12 on, this frame refers to its caller's, in contextlib, which has `error`: a cycle.
            raise GraphError(str(error)) from error.with_traceback(None)
        finally:
            torch.cuda.current_stream(device).wait_stream(stream)


def capture(work: Callable[[], None], stream: torch.cuda.Stream, memory: MemoryId = None) -> Graph:
    """Return `work`, which has run before, as a graph.

    memory: `pool` of an earlier graph whose memory serves for what `work` allocates, or None. The graphs may not run at
        the same time. It is free when the last of them is reset.
    """
    graph = torch.cuda.CUDAGraph()
    try:  # not torch.cuda.graph, which waits for the device, collects garbage and empties the cache first
        with torch.cuda.stream(stream):
            # For the generator's state. Without memory for it, torch 2.11 ends the process when the graph is deleted.
            torch.empty(1024, dtype=torch.uint8, device=stream.device)
            graph.capture_begin(memory, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    except BaseException:
        graph.reset()
        raise
    return graph


def drop_graphs(graphs: dict[Any, Graph]) -> None:
    """Free graphs, and forget them."""
    for graph in graphs.values():
        graph.reset()
    graphs.clear()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors hold the same bits. NaN, as from a damaged checkpoint, then equals itself."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
