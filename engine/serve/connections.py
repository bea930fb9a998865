"""Connections: how many there may be, how long each may wait, and how many bytes of callers are held at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from operator import attrgetter

from aiohttp import web

from .acceptor import Acceptor
from .access import DISCONNECTED, LEFT
from .bodies import MOST_BYTES, check_clip_begins
from .calls import BadCall
from .errors import failure
from .hosts import is_loopback

MOST_HELD = 512 << 20  # bytes of all callers that are held: what they send, until its call begins, and have not read
FREE = 1 << 16  # bytes of each connection that do not count, so that callers with texts go on beside others with clips
FIRST_SECONDS = 30.0  # until a connection's first request
BODY_SECONDS = 120.0  # until a body is whole
WRITE_SECONDS = 120.0  # until a caller has read some of what waits for it
SPARE = 256  # connections beside those of calls
_LAST_SECONDS = 1.0  # for a caller who sent too much to read that
_LOOKS = 8  # at what waits, in WRITE_SECONDS


class CallerConnections:
    """All connections of a server. Not thread-safe: belongs to the event loop.

    most: at once. An address that is not this machine's may have half of them.
    """

    def __init__(self, most: int):
        self.held = 0  # bytes
        self._most = most
        self._open: dict[object, Connection] = {}  # by aiohttp's protocol
        self._by_address: Counter[str] = Counter()

    async def listen(
        self, server: Callable[[], asyncio.Protocol], host: str, port: int, get_ready: Callable[[], Awaitable[None]]
    ) -> asyncio.Server | Acceptor:
        """Take a port, and accept connections once ready. server(): returns aiohttp's protocol for one."""
        made, loop = functools.partial(Connection, self, server), asyncio.get_running_loop()
        bound = await loop.create_server(made, host, port, start_serving=False)
        try:
            await get_ready()
            if sys.platform == "win32":
                return Acceptor(bound, made)
            await bound.start_serving()
        except BaseException:
            bound.close()
            raise
        return bound

    def of(self, request: web.Request) -> Connection:
        return self._open[request.protocol]

    def abort(self) -> None:
        """Drop all connections at once, also those whose callers read nothing."""
        for connection in [*self._open.values()]:
            connection.abort()

    def shed(self) -> None:
        """While too much is held, drop a caller: who has read nothing for longest, and of these who holds most."""
        while self.held > MOST_HELD:
            max(filter(attrgetter("held"), self._open.values()), key=attrgetter("looks", "held")).abort()

    def admit(self, connection: Connection, protocol: object, address: str) -> BadCall | None:
        """Count a connection, or return the reason to refuse it."""
        if len(self._open) >= self._most:
            return BadCall("the server has reached its limit of connections. Try again soon.", None, 503, "overloaded")
        if not is_loopback(address) and self._by_address[address] >= self._most // 2:
            return BadCall("your address has too many connections. Close some.", None, 429, "too_many_connections")
        self._open[protocol] = connection
        self._by_address[address] += 1
        return None

    def forget(self, protocol: object, address: str) -> None:
        """Take back `admit`."""
        if self._open.pop(protocol, None) is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class Connection(asyncio.Protocol):
    """One connection: passes all on to aiohttp's protocol, counts its bytes, and ends what waits for ever.

    on_excess(): called once if too many bytes are held; nothing more is received then.
    """

    def __init__(self, connections: CallerConnections, server: Callable[[], asyncio.Protocol]):
        self._all, self._inner, self._address = connections, server(), ""
        self._transport: asyncio.Transport | None = None
        self._bytes, self._unread, self._counts, self._began, self._drops = 0, 0, True, False, False
        self._is_gone = False
        self._waits, self.looks = 0, 0  # bytes in the transport, and how often they have been the same
        self.on_excess: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._address = transport, str((transport.get_extra_info("peername") or ("",))[0])
        if refused := self._all.admit(self, self._inner, self._address):
            self._drops = True
            body = json.dumps({"error": failure(refused).envelope()}).encode()
            head = f"HTTP/1.1 {refused.status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            transport.write(f"{head}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n".encode() + body)
            transport.close()
            return
        self._inner.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._first = loop.call_later(FIRST_SECONDS, lambda: self._began or self.abort())
        self._next = loop.call_later(WRITE_SECONDS / _LOOKS, self._look)

    def data_received(self, data: bytes) -> None:
        if self._drops:
            return
        if self._counts:
            self._count(len(data))
        if self.on_excess and self.is_excess:
            self._drops = True
            self.on_excess()
            asyncio.get_running_loop().call_later(_LAST_SECONDS, self.abort)  # what is held is free then
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._drops else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._all.forget(self._inner, self._address)
        if hasattr(self, "_next"):  # it was admitted
            self._first.cancel()
            self._next.cancel()
            self._inner.connection_lost(exc)

    @property
    def is_excess(self) -> bool:
        """True if the server holds too many bytes of callers, more than a few of them of this one."""
        return self._bytes > FREE and self._all.held > MOST_HELD

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count the bytes of a request until it is answered. What comes after a refusal is dropped, and not counted."""
        self._counts = self._began = True
        try:
            yield
        finally:
            self.on_excess, self._counts = None, False
            self.hold(-self._unread)
            self.release()

    def release(self) -> None:
        """Count the bytes so far no more, because they are held no more."""
        self._count(-self._bytes)

    def hold(self, size: int) -> None:
        """Count bytes that wait for the caller to read them, until its request is answered. Negative: no longer."""
        if not self._is_gone:
            self._count(0, size)
            self._all.shed()

    @property
    def held(self) -> int:
        """Bytes of this caller that count."""
        return max(0, self._bytes + self._unread - FREE)

    async def body(self, request: web.Request, most: int = MOST_BYTES) -> bytes:
        """Read a body. Raises BadCall if it is too large, too slow, or too much beside those of others.

        most: bytes of one without a clip.
        """
        try:
            return await asyncio.wait_for(self._body(request, most), BODY_SECONDS)
        except asyncio.TimeoutError:
            raise BadCall("the body did not arrive in time.", None, 408, "timeout") from None
        except ConnectionError:
            raise BadCall("the caller disconnected.", None, LEFT, DISCONNECTED) from None
        except web.RequestPayloadError as error:
            raise BadCall("the body is not sent as its headers say.") from error

    async def _body(self, request: web.Request, most: int) -> bytes:
        parts, size = [], 0
        while part := await request.content.readany():
            parts.append(part)
            size += len(part)
            if size > most:
                if most == MOST_BYTES:
                    raise BadCall(f"the body is larger than {MOST_BYTES >> 20} MB. Send a shorter clip.", None, 413)
                parts, most = [check_clip_begins(b"".join(parts))], MOST_BYTES
            if self.is_excess:
                raise BadCall("callers are sending too much at once. Try again soon.", None, 503, "overloaded")
            await asyncio.sleep(0)
        return b"".join(parts)

    def abort(self) -> None:
        """Drop the connection at once, with all that it holds."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self):
        self._count(-self._bytes, -self._unread)
        self._is_gone = self._drops = True

    def _count(self, received: int, unread: int = 0):
        before = self.held
        self._bytes += received
        self._unread += unread
        self._all.held += self.held - before

    def _look(self):
        """Drop the connection if what waits for its caller has not become less for WRITE_SECONDS."""
        assert self._transport is not None
        waits = self._transport.get_write_buffer_size()
        self.looks = self.looks + 1 if waits and waits == self._waits else 0
        self._waits = waits
        if self.looks >= _LOOKS:
            self.abort()
        self._next = asyncio.get_running_loop().call_later(WRITE_SECONDS / _LOOKS, self._look)
