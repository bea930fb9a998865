"""Error responses in OpenAI's envelope."""

from __future__ import annotations

import logging

import torch
from aiohttp import web
from aiohttp.http import HttpProcessingError

from .calls import BadCall
from .speaker import Refused

LOG = logging.getLogger("higgs_tts.serve")
LOG.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))  # callers' faults


def envelope(message: str, status: int, param: str | None = None, code: str | None = None) -> dict:
    """Return the value of "error"."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def described(error: BaseException) -> tuple[str, int, str | None, str | None]:
    """Return an error's message, HTTP status, field and code."""
    if isinstance(error, BadCall):
        return str(error), error.status, error.param, error.code
    if isinstance(error, torch.OutOfMemoryError):
        return "the device is out of memory. Try again, or with a shorter text.", 503, None, "overloaded"
    return (str(error), 400, "input", None) if isinstance(error, Refused) else (str(error), 500, None, None)


def error(message: str, status: int, param: str | None = None, code: str | None = None) -> web.Response:
    """Return an error response."""
    headers = {"Retry-After": "1"} if status == 503 else None
    return web.json_response({"error": envelope(message, status, param, code)}, status=status, headers=headers)
