"""Listening on Windows: a caller who resets a connection that is not accepted yet ends nothing.

asyncio's own server closes its listening socket then, and is never reached again (CPython's issue 93821).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

_BACKLOG = 100  # as asyncio has it
_PAUSE = 0.01  # seconds after a connection that could not be accepted


class Acceptor:
    """Accepts connections at the addresses of a server that is bound and not started.

    made(): returns the protocol for a connection.
    """

    def __init__(self, bound: asyncio.Server, made: Callable[[], asyncio.Protocol]):
        self._bound, self._made = bound, made
        self.sockets = [one.dup() for one in bound.sockets]
        for one in self.sockets:
            one.listen(_BACKLOG)
            one.setblocking(False)
        self._tasks = [asyncio.ensure_future(self._accept(one)) for one in self.sockets]

    async def _accept(self, listening):
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:  # its caller has reset it
                await asyncio.sleep(_PAUSE)
                continue
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(self._made, connection)

    def close(self) -> None:
        """Accept no more connections. Open ones stay."""
        for task in self._tasks:
            task.cancel()
        for one in self.sockets:
            one.close()
        self._bound.close()
