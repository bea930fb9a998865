"""Keep the process from exiting while a node works.

ComfyUI exits while its daemon worker still computes. Python then freezes that thread wherever it is, and inside torch
this aborts the process. So the exit waits for the running node, which stops for good at its next check.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server import PromptServer

EXIT_SECONDS = 10  # how long the exit waits for a node

_work = threading.Lock()  # held by the running node, finally by the exit
_exiting = threading.Event()
_server_was_running = False  # when the running node began; scripts run nodes without a server


def _is_server_running() -> bool:
    server = getattr(PromptServer, "instance", None)
    return server is not None and server.loop.is_running()


def is_exiting() -> bool:
    """True if the process exits, or ComfyUI's server has stopped since the running node began."""
    return _exiting.is_set() or (_server_was_running and not _is_server_running())


@contextmanager
def node_work() -> Iterator[None]:
    """Context of a node's work. Never left once the process exits."""
    global _server_was_running
    _work.acquire()
    _server_was_running = _is_server_running()
    try:
        yield
    finally:
        stop_if_exiting()
        _work.release()


def stop_if_exiting() -> None:
    """Block forever if the process exits, else return. Called by the running node."""
    if is_exiting():
        _work.release()
        threading.Event().wait()


@atexit.register
def wait_for_node() -> None:
    """Stop the running node and all that follow, and wait until it has stopped."""
    _exiting.set()
    _work.acquire(timeout=EXIT_SECONDS)
