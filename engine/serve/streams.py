"""Sound on its way to a caller while it is spoken: as raw samples, or as events."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import torch
from aiohttp import web

from ..config import SAMPLE_RATE
from ..result import SpeechResult
from .errors import envelope
from .sound import FORMATS, pcm

_HEADERS = {"X-Sample-Rate": str(SAMPLE_RATE), "X-Channels": "1", "X-Bit-Depth": "16"}


def finish_reason(speech: SpeechResult) -> str:
    """As OpenAI names it."""
    return "stop" if speech.complete else "length"


class RawStream:
    """The samples alone, as `sound.pcm` has them. How they ended can only be asked afterwards."""

    media = FORMATS["pcm"]

    def __init__(self, request: web.Request, headers: Mapping[str, str]):
        self._request = request
        self.answer = web.StreamResponse(headers={**headers, **_HEADERS, "Content-Type": self.media})

    @property
    def has_begun(self) -> bool:
        """Whether the caller has been answered; before that an error has a status of its own."""
        return self.answer.prepared

    async def hear(self, wav: torch.Tensor) -> None:
        """The next sound [n] float32."""
        await self._write(pcm(wav))

    async def end(self, speech: SpeechResult) -> None:
        """All of it has been heard."""
        await self._write(b"")

    async def fail(self, message: str) -> None:
        """What comes is not whole: the connection breaks, for a raw body has no other way to say so."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _write(self, data: bytes):
        if not self.answer.prepared:
            await self.answer.prepare(self._request)
        if data:
            await self.answer.write(data)


class EventStream(RawStream):
    """Server-sent events, named as OpenAI names them."""

    media = "text/event-stream"

    async def hear(self, wav: torch.Tensor) -> None:
        await self._tell("speech.audio.delta", audio=base64.b64encode(pcm(wav)).decode())

    async def end(self, speech: SpeechResult) -> None:
        usage = {"output_tokens": speech.frames, "seconds": round(speech.seconds, 3)}
        await self._tell("speech.audio.done", finish_reason=finish_reason(speech), usage=usage)

    async def fail(self, message: str) -> None:
        await self._tell("error", error=envelope(message, 500))

    async def _tell(self, event: str, **content: object):
        await self._write(f"event: {event}\ndata: {json.dumps({'type': event, **content})}\n\n".encode())
