"""Streamed responses: a file's bytes, or events."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping

import torch
from aiohttp import web

from ..core.config import SAMPLE_RATE
from ..speech.result import SpeechResult
from .access import CALL, DISCONNECTED
from .errors import Failure
from .sound import FORMATS, encoder_of

_PCM = {"X-Sample-Rate": str(SAMPLE_RATE), "X-Channels": "1", "X-Bit-Depth": "16"}  # raw PCM carries none of this
_NO_HEADER = re.compile(r"[^ -~]")  # characters that a header cannot hold
_PART = SAMPLE_RATE  # samples written at a time
_WRITTEN = 1 << 16  # bytes of a whole answer, too


def answer_headers(model: str, ignored: Iterable[str]) -> dict[str, str]:
    """Return the headers of every answer. ignored: the call's fields that have no effect."""
    headers = {"X-Request-Id": uuid.uuid4().hex, "X-Model": model}
    if names := sorted(ignored):
        headers["X-Ignored-Fields"] = _NO_HEADER.sub("?", ", ".join(names))[:400]
    return headers


def finish_reason(speech: SpeechResult) -> str:
    return "stop" if speech.complete else "length"


def end_of(speech: SpeechResult) -> dict:
    """Return how speech ended, for JSON: reason, frames and seconds, and what the check found."""
    usage = {"output_tokens": speech.frames, "seconds": round(speech.seconds, 3)}
    return {"finish_reason": finish_reason(speech), "usage": usage, "check": check_of(speech)}


def check_of(speech: SpeechResult) -> dict:
    """Return how speech came out: a sentence, each place in doubt, in seconds, and warnings."""
    doubts = [
        {"text": one.text, "kind": one.kind, "start": round(one.start, 3), "end": round(one.end, 3)}
        for one in speech.doubts
    ]
    return {"outcome": speech.outcome, "doubts": doubts, "warnings": [*speech.warnings]}


async def send_whole(request: web.Request, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send an answer in parts, so that what the caller has not read waits here, where it is counted."""
    answer = web.StreamResponse(headers=headers)
    answer.content_length = len(body)
    try:
        await answer.prepare(request)
        for at in range(0, len(body), _WRITTEN):
            await answer.write(memoryview(body)[at : at + _WRITTEN])
        await answer.write_eof()
    except ConnectionResetError:  # the caller disconnected, and this task was not cancelled yet
        CALL.get().kind = DISCONNECTED
    return answer


class RawStream:
    """Streams a file's bytes. How the speech ended can only be asked afterwards."""

    def __init__(self, request: web.Request, headers: Mapping[str, str], sound: str):
        self._request, self._encoder = request, encoder_of(sound)
        own = {"Content-Type": self._media(sound), **(_PCM if sound == "pcm" else {})}
        self.answer = web.StreamResponse(headers={**headers, **own})

    @property
    def has_begun(self) -> bool:
        """True if the response has started. Before that, an error has its own HTTP status."""
        return self.answer.prepared

    async def hear(self, wav: torch.Tensor) -> None:
        """Send the next samples [n] float32. A long silence is sent in parts."""
        for part in wav.split(_PART):
            if data := await self._run(self._encoder.encode, part):
                await self._send(data)
            await asyncio.sleep(0)  # others go on

    async def end(self, speech: SpeechResult) -> None:
        await self._send(await self._run(self._encoder.end))

    async def fail(self, message: str) -> None:
        """Break the connection, so that callers notice the sound is incomplete: a file cannot carry an error."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def _media(self, sound: str) -> str:
        return FORMATS[sound]

    async def _run(self, encode: Callable[..., bytes], *given: torch.Tensor) -> bytes:
        return await asyncio.to_thread(encode, *given) if self._encoder.is_slow else encode(*given)

    async def _send(self, data: bytes):
        await self._write(data)

    async def _write(self, data: bytes):
        if not self.answer.prepared:
            await self.answer.prepare(self._request)
        if data:
            await self.answer.write(data)


class EventStream(RawStream):
    """Server-sent events, named as in OpenAI's API."""

    async def end(self, speech: SpeechResult) -> None:
        if rest := await self._run(self._encoder.end):
            await self._send(rest)
        await self._tell("speech.audio.done", **end_of(speech))

    async def fail(self, message: str) -> None:
        await self._tell("error", error=Failure(message, 500).envelope())

    def _media(self, sound: str) -> str:
        return "text/event-stream"

    async def _send(self, data: bytes):
        await self._tell("speech.audio.delta", audio=base64.b64encode(data).decode())

    async def _tell(self, event: str, **content: object):
        await self._write(f"event: {event}\ndata: {json.dumps({'type': event, **content})}\n\n".encode())
