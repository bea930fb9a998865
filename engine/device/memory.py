"""Where an engine's tensors live on its device, and how all of it goes back.

With the native allocator (expandable segments or not) they go into a pool of their own, so that no foreign tensor
shares a segment with them and closing returns whole segments. cudaMallocAsync, ComfyUI's default, refuses such pools
and needs none: the driver's pool is trimmed by `empty_cache`.
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

_LARGE, _SEGMENT = 10 << 20, 2 << 20  # what is as large gets a segment of its own, rounded up to _SEGMENT


class PrivatePool:
    """Takes the allocations of one open engine, counts what is alive of them and frees it at the end.

    `allocate()` routes this thread's allocations into the pool; `adopt` makes tensors the pool's; `close` returns
    everything to the device, whoever still refers to an adopted tensor, and is safe to call twice.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._adopted: list[weakref.ref] = []
        self._pool = _mem_pool(device)
        self._stream: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    @contextlib.contextmanager
    def allocate(self) -> Iterator[None]:
        """Allocations of this thread on the pool's device go into the pool."""
        if self._pool is None:
            yield
            return
        with torch.cuda.use_mem_pool(self._pool, self.device):
            yield

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts these tensors as long as they live, and empties them when the pool closes."""
        alive = [ref for ref in self._adopted if ref() is not None]
        self._adopted = alive + [weakref.ref(tensor) for tensor in tensors]

    def live_bytes(self) -> int:
        """Bytes that adopted tensors still take; a storage counts once, however many views of it were adopted."""
        storages = [tensor.untyped_storage() for tensor in self._living()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _living(self) -> list[torch.Tensor]:
        return [tensor for ref in self._adopted if (tensor := ref()) is not None]

    def capture_stream(self) -> torch.cuda.Stream:
        """The pool's one stream for warm-up and capture; what it captures goes before other work on the device."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device, priority=-1)
        return self._stream

    def side_stream(self) -> torch.cuda.Stream:
        """The pool's one stream for work beside the talker."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        return self._side

    def hold_workspaces(self) -> None:
        """Makes cuBLAS keep its workspaces until `trim`: for a capture with matrix products of cuBLAS inside."""
        if self.device.type == "cuda":
            with _holders_lock:
                _holders.add(id(self))

    def trim(self) -> None:
        """Returns what is free to the device: after captures and their buffers are gone, weights still there."""
        if self.device.type != "cuda":
            return
        with torch.cuda.device(self.device):
            self._stream = self._side = None
            _release_workspaces(self)
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Returns everything to the device. The owner has dropped its tensors and graphs before.

        An adopted tensor that somebody still refers to keeps no memory, it is empty from now on: an exception refers to
        the frames it passed, and ComfyUI holds it while it already loads another model.
        """
        held = self.live_bytes()
        if held:
            log.debug("Higgs TTS: %d bytes on %s were still referenced when their pool closed.", held, self.device)
        drop(self._living())
        self._adopted.clear()
        self._pool = None
        self.trim()


def drop(tensors: Iterable[torch.Tensor]) -> None:
    """Takes these tensors' memory from them, whoever still refers to them: they are empty from now on."""
    for tensor in tensors:
        tensor.data = tensor.new_empty(0)


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that nobody has; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def device_bytes(sizes: Iterable[int], device: torch.device) -> int:
    """Bytes that allocations of these sizes take on a device, as torch's caching allocator rounds them."""
    if device.type != "cuda":
        return sum(sizes)
    return sum(-(-size // _SEGMENT) * _SEGMENT if size >= _LARGE else size for size in sizes)


def workspace_bytes(device: torch.device) -> int:
    """cuBLAS's workspace for one stream, as torch allocates it (getChosenWorkspaceSize in its CUDABlas.cpp)."""
    if device.type != "cuda":
        return 0
    is_hopper_or_later = torch.cuda.get_device_capability(device) >= (9, 0)
    return 32 << 20 if is_hopper_or_later else (8 << 20) + (128 << 10)


class Peak:
    """Watches the most bytes that torch allocates on a GPU from now on; `held` of them are there already."""

    def __init__(self, device: torch.device, held: int):
        self._device, self._others = device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._others = torch.cuda.memory_allocated(device) - held

    def nbytes(self) -> int:
        """The most so far, less what others had at the beginning; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self._device) - self._others if self._device.type == "cuda" else 0


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`; the host does not wait for the work that is queued there before the copy."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _mem_pool(device: torch.device):
    """A pool of one's own, or None where there is none to be had.

    torch 2.5's `use_mem_pool` never releases the pool it was given; `use_count` came with the mend, in 2.6.
    """
    if device.type != "cuda" or not hasattr(getattr(torch.cuda, "MemPool", None), "use_count"):
        return None
    return torch.cuda.MemPool() if torch.cuda.get_allocator_backend() == "native" else None


# cuBLAS workspaces belong to the process: torch keeps one for each stream and clears them all or none. A captured
# graph has its workspace's address inside, so they may go only when no engine has a graph left.
_holders: set[int] = set()
_holders_lock = threading.Lock()


def _release_workspaces(pool: PrivatePool):
    with _holders_lock:
        _holders.discard(id(pool))
        if not _holders:
            clear_cublas_workspaces()
