"""HTTP calls that another thread can cancel."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from typing import Any, NamedTuple

from ...core.config import VERSION
from ...core.errors import HiggsError
from .address import Address

Body = dict[str, Any] | bytes  # sent as JSON, or as it is

Response = http.client.HTTPResponse

CONNECT_SECONDS = 10.0
_MOST_BYTES = 256 << 20  # maximum response body: over an hour of audio


class Broken(HiggsError):
    """Connection failed, or ended before the response did. The message continues the server's name."""


class TimedOut(Broken):
    """The server did not respond in time."""


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes

    @property
    def kind(self) -> str:
        """Media type without parameters."""
        return self.headers.get_content_type() if "Content-Type" in self.headers else ""

    def json(self) -> Any:
        """Parse the body as JSON. None if it is not valid JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Connections:
    """Calls in flight. `close` cancels them at once, and any later ones."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.closed = False

    def ask(self, address: Address, method: str, path: str, body: Body | None = None, seconds: float = 30.0) -> Answer:
        """Make one call on its own connection. seconds: read timeout. Raises Broken."""
        with self.opened(address, method, path, body, seconds) as answer:
            return Answer(answer.status, answer.headers, whole_body(answer))

    @contextlib.contextmanager
    def opened(
        self, address: Address, method: str, path: str, body: Body | None, seconds: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield a response to be streamed; otherwise like `ask`. Errors while reading it also raise Broken."""
        headers = {"Accept": "*/*", "Connection": "close", "User-Agent": f"ComfyUI-Higgs-TTS/{VERSION}"}
        if key := address.key:
            headers["Authorization"] = f"Bearer {key}"
        data = None
        if body is not None:
            kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            data, headers["Content-Type"] = body if isinstance(body, bytes) else json.dumps(body).encode(), kind
        protocol = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        connection = protocol(address.host, address.port, timeout=CONNECT_SECONDS)
        try:
            with self._connected(connection) as opened:
                opened.settimeout(seconds)
                connection.request(method, address.path + path, data, headers)
                yield connection.getresponse()
        except TimeoutError as error:
            raise TimedOut(f"did not answer within {seconds:.0f} s.") from error
        except (OSError, http.client.HTTPException) as error:
            raise Broken(_reason(error)) from error
        finally:
            connection.close()

    @contextlib.contextmanager
    def _connected(self, connection: http.client.HTTPConnection):
        try:
            connection.connect()
        except TimeoutError as error:
            raise Broken(
                f"could not be reached within {CONNECT_SECONDS:.0f} s. Check the address and the network."
            ) from error
        opened: socket.socket = connection.sock  # http.client drops its reference while a response is read
        with self._lock:
            if self.closed:
                raise Broken("was not called: the run has ended.")
            self._open.add(opened)
        try:
            yield opened
        finally:
            with self._lock:
                self._open.discard(opened)

    def close(self) -> None:
        """Cancel all calls, from any thread. Waiting callers get Broken."""
        with self._lock:
            self.closed = True
            for opened in self._open:
                with contextlib.suppress(OSError):  # already closed by the peer
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)  # bypasses TLS, which would wait for the reader


def whole_body(answer: http.client.HTTPResponse) -> bytes:
    """Read the rest of a response. Raises Broken if it is incomplete."""
    data = answer.read(_MOST_BYTES)
    if answer.length:  # http.client does not raise for it
        raise Broken("closed the connection before its answer was complete.")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection. Check that the server is running."
    if isinstance(error, socket.gaierror):
        return "was not found. Check the name in the address."
    if isinstance(error, (ConnectionError, http.client.IncompleteRead)):  # includes RemoteDisconnected
        return "closed the connection before its answer was complete."
    return f"could not be reached ({str(error) or type(error).__name__})."
