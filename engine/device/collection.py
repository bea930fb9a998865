"""Pauses of Python's garbage collection, which concern the whole process."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.RLock()
_pauses, _was_enabled = 0, False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let Python collect no garbage until the end, nor at once then."""
    global _pauses, _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                if not gc.get_freeze_count():  # or what was frozen would be collected from now on
                    gc.freeze()  # sets back the counts of allocations that a collection follows
                    gc.unfreeze()
                gc.enable()
