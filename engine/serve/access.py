"""Counts and log lines of answered calls. Texts, names and keys appear in neither."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

from .metrics import ServerMetrics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ACCESS = logging.getLogger("higgs_tts.serve.access")
_PROBES = ("/health", "/metrics")  # polled every few seconds, so not logged
DISCONNECTED = "disconnected"
LEFT = 499  # the status that proxies log for a caller that disconnected


@dataclass
class CallRecord:
    """A call that is being answered. A handler reads when it began, and sets the kind of its error."""

    began: float  # in the loop's time
    kind: str = ""


CALL: ContextVar[CallRecord] = ContextVar("call")


def accounting(metrics: ServerMetrics) -> Middleware:
    """Return a middleware that sets CALL, and counts and logs every answer by its route."""

    @web.middleware
    async def account(request: web.Request, handler: Handler) -> web.StreamResponse:
        loop, status, route = asyncio.get_running_loop(), 500, request.match_info.route.resource
        path = route.canonical if route else "other"
        CALL.set(record := CallRecord(loop.time()))
        try:
            answer = await handler(request)
            status = LEFT if record.kind == DISCONNECTED else answer.status
            return answer
        except asyncio.CancelledError:
            status, record.kind = LEFT, DISCONNECTED
            raise
        finally:
            kind = record.kind or ("server_error" if status == 500 else "")
            metrics.answered(path, status, kind)
            if path not in _PROBES:
                seconds = loop.time() - record.began
                _ACCESS.info("%s %s %s %d %.2f s %s", request.remote, request.method, path, status, seconds, kind)

    return account


@contextlib.contextmanager
def access_log() -> Iterator[None]:
    """Write a line per call to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _ACCESS.addHandler(handler)
    _ACCESS.setLevel(logging.INFO)
    _ACCESS.propagate = False
    try:
        yield
    finally:
        _ACCESS.propagate = True
        _ACCESS.setLevel(logging.NOTSET)
        _ACCESS.removeHandler(handler)
