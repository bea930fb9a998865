"""Upload of file contents to device memory at disk speed: threads read ahead into pinned buffers while copies run.

A copy from a memory map would wait for page faults and for the driver's staging, one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.errors import HiggsError
from ..device.memory import end_of_work
from ..device.torch_names import release_pinned_memory

CHUNK = 32 << 20  # bytes per pinned buffer
READERS = 4
SLOTS = READERS + 2  # buffers being read, waiting or being copied


@dataclass(frozen=True)
class Job:
    """Upload of one stored tensor. `target` is contiguous, of any dtype, on the device."""

    path: Path
    offset: int
    dtype: torch.dtype  # as stored
    target: torch.Tensor
    then: tuple[Callable[[], None], ...] = ()  # called after its last copy is queued; queues work on the same stream


def upload(jobs: list[Job], device: torch.device) -> None:
    """Copy every job's bytes into its target on a CUDA device, converting the dtype if it differs.

    Raises HiggsError if a file ends early.
    """
    pieces = [piece for job in jobs for piece in _pieces(job)]
    slots = [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(min(SLOTS, len(pieces)))]
    busy: list[torch.cuda.Event | None] = [None] * len(slots)
    reads: deque[tuple[Future[torch.Tensor], int, Job, torch.Tensor, bool]] = deque()
    with ThreadPoolExecutor(READERS) as readers:
        for index, (job, offset, target, is_last) in enumerate(pieces):
            slot = index % len(slots)
            if len(reads) == len(slots):
                _copy(*reads.popleft(), busy)
            if (copied := busy[slot]) is not None:
                copied.synchronize()
            size = target.numel() * job.dtype.itemsize
            reads.append((readers.submit(_read, job.path, offset, slots[slot][:size]), slot, job, target, is_last))
        while reads:
            _copy(*reads.popleft(), busy)
    torch.cuda.synchronize(device)
    slots.clear()
    release_pinned_memory()


def _pieces(job: Job) -> Iterator[tuple[Job, int, torch.Tensor, bool]]:
    """Yield (job, offset, part of the target, is last part) in pieces that fit a buffer."""
    flat, size = job.target.view(-1), CHUNK // job.dtype.itemsize
    for start in range(0, flat.numel(), size):
        yield job, job.offset + start * job.dtype.itemsize, flat[start : start + size], start + size >= flat.numel()


def _read(path: Path, offset: int, buffer: torch.Tensor) -> torch.Tensor:
    view = buffer.numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < len(view):
            if not (count := file.readinto(view[done:])):
                raise HiggsError(f"{path} ended {len(view) - done:,} bytes early. Download it again.")
            done += count
    return buffer


def _copy(
    read: Future[torch.Tensor],
    slot: int,
    job: Job,
    target: torch.Tensor,
    is_last: bool,
    busy: list[torch.cuda.Event | None],
):
    """Start the copy of a finished read and mark its buffer busy until the copy is done."""
    target.copy_(read.result().view(job.dtype), non_blocking=True)
    busy[slot] = end_of_work()
    for work in job.then if is_last else ():
        work()
