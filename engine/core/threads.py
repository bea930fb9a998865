"""Temporary limit on torch's CPU threads. Only this file sets it.

CPU operations between GPU steps, and in a small model, take 0.1 ms each. With several threads, each operation waits at
its end for threads that other work keeps from running. That takes many times as long.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_SMALL_BYTES = 128 << 20  # a talker up to this size gains nothing from a second thread: its products are too small

_lock = threading.Lock()
_own = threading.local()  # is_limited: in this thread
_calls = 0  # in flight, in all threads
_usual = 0  # torch's thread count before the first of these calls


def few_threads(device: torch.device, talker_bytes: int) -> contextlib.AbstractContextManager[None]:
    """Limit torch to one thread inside, except for a large model on the CPU."""
    return contextlib.nullcontext() if is_slow(device, talker_bytes) else one_thread()


def is_slow(device: torch.device, talker_bytes: int) -> bool:
    """True for a large model on the CPU, where a second of speech takes many."""
    return device.type == "cpu" and talker_bytes > _SMALL_BYTES


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside. Calls may overlap and be nested; the original count is restored at the end.

    OpenMP keeps a count per thread, and torch keeps one for new threads. So every call sets its own thread's count and
    restores the count from before the first call in flight, not the one it found.
    """
    global _calls, _usual
    if getattr(_own, "is_limited", False):
        yield
        return
    with _lock:
        count = torch.get_num_threads()  # in a new thread this also makes torch set the thread's count, once
        if not _calls:
            _usual = count
        _calls += 1
        torch.set_num_threads(1)
    _own.is_limited = True
    try:
        yield
    finally:
        _own.is_limited = False
        with _lock:
            _calls -= 1
            torch.set_num_threads(_usual)
