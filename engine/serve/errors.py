"""Error responses in OpenAI's envelope."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from aiohttp import web
from aiohttp.http import HttpProcessingError

from ..core.errors import HiggsError
from .calls import BadCall
from .speaker import Refused

LOG = logging.getLogger("higgs_tts.serve")
LOG.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))  # callers' faults
FAILURES = (web.HTTPException, HiggsError, torch.OutOfMemoryError)  # answered by an envelope
_NO_MEMORY = "the device is out of memory. Try again, or send a shorter text."


class Failure(NamedTuple):
    """An error as callers see it."""

    message: str
    status: int
    param: str | None = None  # the invalid field
    code: str | None = None
    wait: int = 1  # seconds until a busy server may have room

    @property
    def kind(self) -> str:
        """Short name for metrics and the log."""
        return self.code or ("server_error" if self.status >= 500 else "invalid_request_error")

    def envelope(self) -> dict:
        """Return the value of "error"."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}

    def answer(self) -> web.Response:
        headers = {"Retry-After": str(self.wait)} if self.status == 503 else None
        return web.json_response({"error": self.envelope()}, status=self.status, headers=headers)


def failure(error: BaseException) -> Failure:
    """Return what a caller is told of one of FAILURES."""
    if isinstance(error, web.HTTPException):  # aiohttp's own: no such route, a body that is too large
        return Failure(error.reason, error.status)
    if isinstance(error, BadCall):
        return Failure(str(error), error.status, error.param, error.code, error.wait)
    if isinstance(error, Refused):
        return Failure(str(error), 400, "input")
    if isinstance(error, torch.OutOfMemoryError):
        return Failure(_NO_MEMORY, 503, None, "out_of_memory")
    return Failure(str(error), 500)
