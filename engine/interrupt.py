"""Ctrl-C in the terminal's process while its modules load: the process ends at once, without a traceback."""

from __future__ import annotations

import os
import signal

STOPPED = 130  # what shells take for a process that Ctrl-C ended


def quit_at_once() -> None:
    """From now on Ctrl-C ends the process. Raised as an exception it could be lost inside an import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _quit)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _quit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _quit(*_: object) -> None:
    os._exit(STOPPED)
