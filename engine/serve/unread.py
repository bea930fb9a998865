"""Speech that waits until its caller has read what came before. Its connection counts it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch

from ..speech.result import SpeechResult
from .connections import Connection


class WirePart(NamedTuple):
    """A part of the answer to a client of ours, as it is sent. samples: how many it has."""

    data: bytes
    samples: int
    is_last: bool


Said = torch.Tensor | SpeechResult
Made = torch.Tensor | WirePart | Callable[[], SpeechResult] | BaseException


class UnreadSpeech:
    """Sound, the result and errors of a job, in order. `tell` and `hear` may be called from any thread.

    The result is made when it is asked for: until then, its sound is held once.
    """

    def __init__(self, connection: Connection):
        self._connection, self._loop, self._queue = connection, asyncio.get_running_loop(), asyncio.Queue()
        self._held = self._given = 0  # bytes of all, and of what `get` returned last
        self._is_over = False

    def tell(self, part: Made) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nothing waits
            self._loop.call_soon_threadsafe(self.put, part)

    def hear(self, wav: torch.Tensor) -> None:
        """Add sound [n], without the whole that it may be a part of."""
        self.tell(wav.clone() if wav.untyped_storage().nbytes() > wav.nbytes else wav)

    def put(self, part: Made) -> None:
        """Add what comes next, from the event loop."""
        if not self._is_over:
            self._hold(_bytes_of(part))
            self._queue.put_nowait(part)

    async def get(self) -> Said | WirePart | BaseException:
        """Return what comes next. What was returned before is held no more."""
        self._hold(-self._given)
        self._given = 0
        part = await self._queue.get()
        self._given = _bytes_of(part)
        if isinstance(part, (torch.Tensor, WirePart, BaseException)):
            return part
        made = await asyncio.to_thread(part)
        self._given = made.wav.nbytes
        self._hold(self._given)
        return made

    def close(self) -> None:
        """Hold nothing any more."""
        self._is_over = True
        self._hold(-self._held)

    def _hold(self, size: int):
        self._held += size
        self._connection.hold(size)


def _bytes_of(part: Made) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else len(part.data) if isinstance(part, WirePart) else 0
