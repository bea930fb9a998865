"""Callers of the WebSocket that streams text in. Some interrupt or leave. `callers.py` makes them; needs aiohttp.

    python benchmarks/text_callers.py PORT CALLS

prints the times to the first sound of callers that come one after the other, as a JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import statistics
import sys
import time

import aiohttp

# When a caller interrupts: configured, half the text sent, a sentence began, its first sound, its end; or never.
PHASES = ("session.configured", "half", "audio.start", "sound", "audio.done", "never")
WAYS = ("cancel", "leave", "close")
SENTENCES = "The boat came in under a grey sky. It was late. Warm bread and cold tea were ready."
LAST = "Good night."
FRAMES = 40  # of a sentence at most


class Gone(Exception):
    """The caller disconnected."""


class TextCaller:
    """Streams a text in, interrupts in one phase, and checks the messages.

    way: "cancel" drops the text and streams LAST in, "leave" disconnects, "close" sends session.close. is_cut: True
    once it has interrupted. is_right: True if all messages were as they should be.
    """

    def __init__(self, words: random.Random, phase: str, way: str):
        self._words, self._phase, self._way = words, phase, way
        self._heard = self._begun = self._ended = 0  # bytes of this sentence; sentences of this text
        self._waits = False  # for input.cancelled
        self.is_cut, self.is_right = False, True

    async def run(self, port: int) -> None:
        """Make the call. Raises Gone if it left."""
        address = f"http://127.0.0.1:{port}/v1/audio/speech/stream"
        async with aiohttp.ClientSession() as session, session.ws_connect(address) as self._socket:
            await self._stream()

    async def _stream(self):
        config = {"stream_audio": self._words.random() < 0.7, "response_format": self._words.choice(("pcm", "mp3"))}
        config |= {"split_granularity": self._words.choice(("sentence", "clause", "none")), "retries": 0}
        config |= {"seed": self._words.randrange(1 << 31), "max_new_tokens": FRAMES}
        await self._send("session.config", **config)
        await self._until("session.configured")
        await self._write(SENTENCES)
        told = await self._until("session.done")
        self.is_right &= told is None or told["total_sentences"] == self._ended == self._begun > 0
        if not (self.is_cut and self._way == "close"):
            await self._send("session.close")
        await self._until("closed")

    async def _write(self, text: str):
        cuts = sorted(self._words.sample(range(1, len(text)), 4))
        pieces = [text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)])]
        for number, piece in enumerate(pieces):
            if number == 2:
                await self._at("half")
            if self._waits or (self.is_cut and self._way == "close"):
                return
            await self._send("input.text", text=piece)
        await self._send("input.done")

    async def _until(self, wanted: str) -> dict | None:
        """Take messages in until one of a type, or None at the end of the connection."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self._heard += len(message.data)
                await self._at("sound")
                continue
            told = json.loads(message.data)
            kind = told["type"]
            if kind == "audio.start":
                self._begun, self._heard = self._begun + 1, 0
            elif kind == "audio.done":
                self._ended += 1
                self.is_right &= told["total_bytes"] == self._heard and not told["error"]
            elif kind == "input.cancelled":
                self._waits = False
                self._begun = self._ended = 0
                await self._write(LAST)
            elif kind == "error":
                self.is_right = False
            await self._at(kind)
            if kind == wanted and not (self._waits and kind == "session.done"):  # done just before it was cancelled
                return told
        self.is_right &= wanted == "closed" or (self.is_cut and self._way == "close")
        return None

    async def _at(self, phase: str):
        """Interrupt, if this is the phase to do so."""
        if phase != self._phase or self.is_cut:
            return
        self.is_cut, self._waits = True, self._way == "cancel"
        if self._way == "leave":
            self._socket.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # without a farewell
            raise Gone
        await self._send("input.cancel" if self._way == "cancel" else "session.close")

    async def _send(self, kind: str, **content: object):
        if not self._socket.closed:
            await self._socket.send_json({"type": kind, **content})


async def first_sounds(port: int, calls: int) -> dict:
    """Return milliseconds from sending a first sentence's end to its first sound. The first three do not count."""
    took = []
    async with aiohttp.ClientSession() as session:
        for number in range(calls + 3):
            async with session.ws_connect(f"http://127.0.0.1:{port}/v1/audio/speech/stream") as websocket:
                config = {"stream_audio": True, "response_format": "pcm", "seed": number, "max_new_tokens": FRAMES}
                await websocket.send_json({"type": "session.config", **config})
                while (await websocket.receive_json())["type"] != "session.configured":
                    pass
                beginning, end = SENTENCES[:32], SENTENCES[32:42]  # "... sk", "y. It was "
                await websocket.send_json({"type": "input.text", "text": beginning})
                began = time.perf_counter()
                await websocket.send_json({"type": "input.text", "text": end})
                while (await websocket.receive()).type != aiohttp.WSMsgType.BINARY:
                    pass
                took.append(1000 * (time.perf_counter() - began))
    kept = sorted(took[3:])
    return {"p50": round(statistics.median(kept), 1), "most": round(kept[-1], 1), "calls": calls}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(first_sounds(*map(int, sys.argv[1:])))))
