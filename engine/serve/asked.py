"""Answers of another thread, awaited in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any


async def asked(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """Call ask(end), and return or raise what another thread gives to end(result or exception)."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Any] = loop.create_future()

    def end(what: object):
        def settle():
            if made.done():  # no caller waits any more
                return
            made.set_exception(what) if isinstance(what, BaseException) else made.set_result(what)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle)

    ask(end)
    return await made
