"""Private memory pool of an engine, returned to the device as a whole.

With the native allocator (expandable segments or not), an engine's tensors get a pool of their own. No other tensor
shares a segment with them, so closing returns whole segments. cudaMallocAsync, ComfyUI's default, does not support such
pools and needs none: `empty_cache` trims the driver's pool.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator

import torch

from .torch_names import clear_cublas_workspaces

log = logging.getLogger("higgs_tts")

# torch's caching allocator: allocations from _LARGE up get a segment of their own, rounded up to _ROUND. Those above
# _SMALL share segments of _SHARED, and what is left of one serves another if it is above _SMALL.
_SMALL, _LARGE, _SHARED, _ROUND = 1 << 20, 10 << 20, 20 << 20, 2 << 20


class PrivatePool:
    """Memory pool of one open engine. Counts its live tensors and frees them at the end.

    `allocate()` routes this thread's allocations into the pool. `adopt` registers tensors with it. `close` returns
    everything to the device, even if adopted tensors are still referenced, and is safe to call twice.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._adopted: list[weakref.ref] = []
        self._pool = _mem_pool(device)
        self._stream: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    @property
    def is_private(self) -> bool:
        """True if the allocator has private pools, and so memory that a graph may keep."""
        return self._pool is not None

    @contextlib.contextmanager
    def allocate(self) -> Iterator[None]:
        """Route this thread's allocations on the pool's device into the pool."""
        if self._pool is None:
            yield
            return
        with pools_stay(), torch.cuda.use_mem_pool(self._pool, self.device):
            yield

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors while they live, and empty them when the pool closes."""
        alive = [ref for ref in self._adopted if ref() is not None]
        self._adopted = alive + [weakref.ref(tensor) for tensor in tensors]

    def live_bytes(self) -> int:
        """Return the bytes of live adopted tensors. A storage counts once, even if several views of it were adopted."""
        storages = [tensor.untyped_storage() for tensor in self._living()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _living(self) -> list[torch.Tensor]:
        return [tensor for ref in self._adopted if (tensor := ref()) is not None]

    def capture_stream(self) -> torch.cuda.Stream:
        """Return the pool's stream for warm-up and capture. It has priority over other work on the device."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device, priority=-1)
        return self._stream

    def side_stream(self) -> torch.cuda.Stream:
        """Return the pool's stream for work that runs beside the talker."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        return self._side

    def hold_workspaces(self) -> None:
        """Keep cuBLAS's workspaces until `trim`. Needed if captured graphs contain cuBLAS matrix products."""
        if self.device.type == "cuda":
            with _lock:
                _holders.add(id(self))

    def trim(self) -> None:
        """Return free memory to the device, after graphs and their buffers are gone. Weights may still be there."""
        if self.device.type != "cuda":
            return
        with torch.cuda.device(self.device):
            self._stream = self._side = None
            with _lock:
                _holders.discard(id(self))
                if not _holders:
                    clear_cublas_workspaces()
            _delete_closed()
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Return everything to the device. The owner must drop its tensors and graphs first.

        Adopted tensors that are still referenced become empty. An exception, for example, refers to the frames it
        passed through, and ComfyUI keeps it while it loads the next model.
        """
        if held := self.live_bytes():
            log.debug("Higgs TTS: %d bytes on %s were still referenced when their pool closed.", held, self.device)
        drop(self._living())
        self._adopted.clear()
        if self._pool is not None:
            with _lock:
                _closed.append(self._pool)
            self._pool = None
        self.trim()


def drop(tensors: Iterable[torch.Tensor]) -> None:
    """Free these tensors' memory even if they are still referenced. They become empty."""
    for tensor in tensors:
        tensor.data = tensor.new_empty(0)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a GPU, or 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def device_bytes(sizes: Iterable[int], device: torch.device) -> int:
    """Return the device's bytes for allocations of these sizes, in this order, by torch's caching allocator."""
    if device.type != "cuda":
        return sum(sizes)
    total, rests = 0, []  # of shared segments
    for size in sizes:
        if size >= _LARGE:
            total += -(-size // _ROUND) * _ROUND
        elif size <= _SMALL:
            total += size
        else:
            rest = min((rest for rest in rests if rest >= size), default=_SHARED)
            if rest in rests:
                rests.remove(rest)
            else:
                total += _SHARED
            if rest - size > _SMALL:
                rests.append(rest - size)
    return total


def workspace_bytes(device: torch.device) -> int:
    """Return the bytes of cuBLAS's workspace per stream, as in torch (getChosenWorkspaceSize in CUDABlas.cpp)."""
    if device.type != "cuda":
        return 0
    is_hopper_or_later = torch.cuda.get_device_capability(device) >= (9, 0)
    return 32 << 20 if is_hopper_or_later else (8 << 20) + (128 << 10)


class Peak:
    """Peak of torch's allocations on a GPU from now on. `held`: bytes of the engine that are already allocated."""

    def __init__(self, device: torch.device, held: int):
        self._device, self._others = device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._others = torch.cuda.memory_allocated(device) - held

    def nbytes(self) -> int:
        """Return the peak so far in bytes, minus other allocations at the start; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self._device) - self._others if self._device.type == "cuda" else 0


def end_of_work(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """Return an event at the end of the work queued so far on a stream, by default the current one."""
    event = torch.cuda.Event()
    event.record(stream)
    return event


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy `tensor` to `device`. The host does not wait for work queued on the device."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a GPU's tensor in pinned memory, valid once the work queued so far is done."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def send(tensor: torch.Tensor, to: torch.Tensor) -> None:
    """Copy a host tensor into `to`. The host does not wait for work queued on the device."""
    to.copy_(tensor.pin_memory() if to.device.type == "cuda" else tensor, non_blocking=True)


def _mem_pool(device: torch.device):
    """Return a new MemPool, or None if pools are not available.

    torch 2.5's `use_mem_pool` never releases its pool. The fix in 2.6 also added `use_count`.
    """
    if device.type != "cuda" or not hasattr(getattr(torch.cuda, "MemPool", None), "use_count"):
        return None
    return torch.cuda.MemPool() if torch.cuda.get_allocator_backend() == "native" else None


_lock = threading.RLock()  # a collection may close a pool inside it

# Deleting a MemPool while any thread allocates to one, or captures, ends the process: torch 2.11 asserts in the
# destructor that no capture is under way. A collection can close an engine at any time, so closed pools wait here.
_closed: list[torch.cuda.MemPool] = []
_busy = 0


@contextlib.contextmanager
def pools_stay() -> Iterator[None]:
    """Delete no pool until the end. For allocations to a pool and captures."""
    global _busy
    with _lock:
        _busy += 1
    try:
        yield
    finally:
        with _lock:
            _busy -= 1
        _delete_closed()


def _delete_closed():
    with _lock:
        if _closed and not _busy:
            _closed.clear()


# cuBLAS workspaces belong to the process: torch keeps one per stream and clears all or none. A captured graph contains
# its workspace's address, so they may be cleared only when no engine has a graph left.
_holders: set[int] = set()
