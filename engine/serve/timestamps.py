"""Word times as vLLM-Omni 0.30.0 sends them: in a header of a whole answer, or in messages of a stream of text."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import torch

from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..speech.result import SpeechResult
from .errors import LOG
from .speaker import SpeakerThread

_MOST = 4096  # bytes of a header that proxies let through
_HEADER = "X-Word-Timestamps"


async def word_times(speaker: SpeakerThread, adapter: str, speech: SpeechResult) -> list[dict] | None:
    """Return {"word", "start_ms", "end_ms"} of each word. None if finding them failed. adapter: that of the speech."""
    try:
        words = await asyncio.wrap_future(speaker.ask(adapter, lambda engine: engine.words(speech)))
    except (HiggsError, torch.OutOfMemoryError) as error:
        LOG.warning("Word times could not be found: %s", error)
        return None
    ms = [(round(1000 * word.start), round(1000 * word.end)) for word in words]
    return [{"word": word.text, "start_ms": start, "end_ms": end} for word, (start, end) in zip(words, ms, strict=True)]


def word_headers(times: list[dict] | None) -> dict[str, str]:
    """Return the header with word times, or one with their size if they are too long. Empty for None."""
    if times is None:
        return {}
    text = json.dumps(times)
    if len(text) > _MOST:
        return {f"{_HEADER}-Omitted": f"oversize; bytes={len(text)}; limit={_MOST}"}
    return {_HEADER: text}


class AudioChunks:
    """Sends one unit's PCM as audio.chunk messages, and its word times in a last one without sound.

    tell(type, **content): sends a message. where: fields of the unit's messages.
    """

    def __init__(self, tell: Callable[..., Awaitable[None]], where: Mapping[str, object]):
        self._tell, self._where, self._count, self._bytes = tell, where, 0, 0

    async def sound(self, data: bytes) -> None:
        """Send the next samples, 16-bit mono."""
        start = self._length
        self._bytes += len(data)
        await self._send(data, None, start)

    async def words(self, times: list[dict] | None) -> None:
        await self._send(b"", times, 0)

    @property
    def _length(self) -> int:
        return round(1000 * self._bytes / 2 / SAMPLE_RATE)

    async def _send(self, data: bytes, times: list[dict] | None, start: int):
        span: dict[str, Any] = {"chunk_id": self._count, "chunk_start_ms": start, "chunk_end_ms": self._length}
        self._count += 1
        sound = {"sample_rate": SAMPLE_RATE, "audio_b64": base64.b64encode(data).decode()}
        await self._tell("audio.chunk", **self._where, **span, **sound, timestamps=times)
