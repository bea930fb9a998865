"""Number of CPU threads torch computes with. The only file that sets it, for a moment.

Between a GPU's steps, and in a small model, the host's operations take a tenth of a millisecond each. Shared out, each
ends with a wait for threads that other work keeps from running, which takes many times as long.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_SMALL_BYTES = 128 << 20  # a talker up to this size gains nothing from a second thread: its products are too short

_lock = threading.Lock()
_calls = 0  # in flight, in all threads
_usual = 0  # threads before the first of them


def few_threads(device: torch.device, talker_bytes: int) -> contextlib.AbstractContextManager[None]:
    """One thread inside, but for a large model that the CPU itself computes."""
    is_large = device.type == "cpu" and talker_bytes > _SMALL_BYTES
    return contextlib.nullcontext() if is_large else one_thread()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread inside. Calls may overlap, in any threads; afterwards all is as before the first.

    OpenMP keeps the number for each thread, and torch keeps one for threads to come. So every call sets its own and
    puts back what was there before the first of all calls in flight, not what it found.
    """
    global _calls, _usual
    with _lock:
        found = torch.get_num_threads()  # in a new thread this also makes torch set its number, once
        if not _calls:
            _usual = found
        _calls += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            torch.set_num_threads(_usual)
