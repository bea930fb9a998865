"""Errors of a call to a server. Messages continue a sentence that begins with the server's name."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.errors import HiggsError
from .connections import Answer

_SHOWN = 300  # maximum characters of a server's message


class Refusal(HiggsError):
    """The request is invalid. Not retried on any server."""


class Busy(HiggsError):
    """The server is busy. rest: its Retry-After in seconds, or 0."""

    def __init__(self, message: str, rest: float = 0.0):
        super().__init__(message)
        self.rest = rest


class Failing(HiggsError):
    """Internal server error. A retry may work."""


class Lost(HiggsError):
    """The server cannot be used."""


def error_of(answer: Answer, variable: str) -> HiggsError:
    """Return the error for a response other than 200. variable: environment variable of the key."""
    status, message = answer.status, _message_of(answer)
    because = f": {message.rstrip('.')}" if message else f" (HTTP {status})"
    if status in (401, 403):
        return Lost(f"refused the key{because}. Put the correct key into the environment variable {variable}.")
    if status in (404, 405):
        return Lost(f"has no such model, voice or path{because}.")
    if status == 503 and _code(answer) == "out_of_memory":
        return Failing(f"failed{because}.")
    if status in (429, 503):
        return Busy(f"is busy{because}.", _rest(answer))
    if status in (502, 504):
        return Busy(f"could not be reached through its gateway{because}.")
    if status >= 500:
        return Failing(f"failed{because}.")
    if 300 <= status < 400:
        return Lost(f"has moved to {str(answer.headers.get('Location', 'elsewhere'))[:100]}. Enter that address.")
    if status == 413:
        return Refusal(
            f"refused the call as too large{because}. Use a shorter reference clip or smaller chunk_seconds."
        )
    return Refusal(f"refused the call{because}.")


def failing(error: object) -> Failing:
    """Return the error that a server tells in the middle of its answer."""
    return Failing(f"failed: {error.get('message') if isinstance(error, Mapping) else error}")


def no_sound(answer: Answer) -> Lost:
    message = _message_of(answer) if answer.kind in ("application/json", "text/plain") else ""
    got = f"{answer.kind or 'data'} instead of audio" + (f": {message}" if message else "")
    return Lost(f"returned {got}. Check that this is the address of a speech server.")


def _message_of(answer: Answer) -> str:
    """Return the server's message on one line, from OpenAI's or FastAPI's error format."""
    message = answer.json()
    for name in ("error", "message", "detail"):
        if isinstance(message, dict) and name in message:
            message = message[name]
    if isinstance(message, list) and message and isinstance(message[0], dict):  # FastAPI's validation error
        message = f"{'.'.join(map(str, message[0].get('loc', ())))}: {message[0].get('msg', '')}"
    words = " ".join(message.split()) if isinstance(message, str) else ""
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "..."


def _code(answer: Answer) -> object:
    error = answer.json()
    error = error.get("error") if isinstance(error, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _rest(answer: Answer) -> float:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", "0")))
    except ValueError:  # an HTTP date
        return 0.0
