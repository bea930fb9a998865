"""Ctrl-C during import: ends the process at once, without a traceback."""

from __future__ import annotations

import os
import signal

STOPPED = 130  # exit status for SIGINT by shell convention


def quit_at_once() -> None:
    """Make Ctrl-C end the process. An exception could be swallowed inside an import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless a shell ignores it
        signal.signal(signal.SIGINT, _quit)


def raise_again() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _quit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _quit(*_: object) -> None:
    os._exit(STOPPED)
