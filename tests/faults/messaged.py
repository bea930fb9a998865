"""Text that streams in to our server, as a surface: damaged messages on a WebSocket, and requests cut short."""

from __future__ import annotations

import json
import pathlib
import random
import socket
import struct

from ...engine import HiggsError
from . import mutations
from .asked import PATIENCE, SHORT, SPEECH, Asked, request
from .samples import PAUSES

_HELLO = (
    b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_CONFIG = {"type": "session.config", "seed": 3, "max_new_tokens": 5, "retries": 0, "stream_audio": True}
_CANCEL = b'{"type": "input.cancel"}'
_KINDS = ("input.commit", "input.done", "input.cancel", "session.close", "session.config", "input.text", "x")
_CUT = b"CUT\n"  # first bytes of a request that stops on its way


def conversations() -> list[bytes]:
    """Return messages, a line each, and the bytes of a request."""
    texts = [{"type": "input.text", "text": "Hi. "}, {"type": "input.commit"}, {"type": "input.done"}]
    more = {**_CONFIG, "split_granularity": "clause", "response_format": "wav", "stream_audio": False}
    talks = [[_CONFIG, *texts], [more, texts[0], texts[0], texts[2]], [{**_CONFIG, "word_timestamps": True}, *texts]]
    body = json.dumps({**SHORT, "response_format": "pcm"}).encode()
    return [
        *(b"\n".join(json.dumps(message).encode() for message in talk) for talk in talks),
        _CUT + request(SPEECH, "application/json", body),
    ]


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Damage, repeat and shuffle messages, or cut a request."""
    if data.startswith(_CUT):
        whole = data + bytes(rng.choice((0, 0, 100_000, 2_000_000)))
        return whole[: rng.randrange(len(_CUT), len(whole))]
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, kind = rng.randrange(len(lines)), rng.randrange(5)
        if kind == 0:
            lines[at] = mutations.json_of(rng, lines[at]).replace(b"\n", b" ")
        elif kind == 1:
            text = mutations.text_of(rng, "Hi. \n", (*PAUSES, "\n]", "a\n", "e.g. ", "]"))[
                : rng.choice((900, 20_000, 90_000))
            ]
            lines.insert(at + 1, json.dumps({"type": "input.text", "text": text}).encode())
        elif kind == 2:
            lines[at:at] = [json.dumps({"type": rng.choice(_KINDS), "text": "a. "}).encode()] * rng.choice(
                (1, 30, 3000)
            )
        elif kind == 3:
            lines[at] = mutations.bytes_of(rng, lines[at]).replace(b"\n", b" ")
        else:
            rng.shuffle(lines)
    return b"\n".join(lines)[: mutations.LARGEST]


class Messaged(Asked):
    """run(data, folder) and warm(folder) of the surface."""

    def run(self, data: bytes, folder: pathlib.Path) -> str:
        """Return how the conversation ended, after checking that the server still serves others."""
        said = self._cut(data.removeprefix(_CUT)) if data.startswith(_CUT) else self._talk(data.split(b"\n"))
        self.check_others(folder)
        if said:
            raise HiggsError(said)
        return "told"

    def _cut(self, data: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as connection:
            try:
                connection.sendall(data)
                connection.recv(1 << 10)
            except OSError:
                pass
        return ""

    def _talk(self, messages: list[bytes]) -> str:
        """Return the first error that the server tells. All its answers must be JSON or sound."""
        said, told = "", b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            try:
                connection.sendall(_HELLO + b"".join(map(_frame, [*messages, _CANCEL])))
                while b"input.cancelled" not in told and (part := connection.recv(1 << 16)):
                    told = told[-(1 << 20) :] + part
            except OSError:
                pass
        assert b" 101 " in told[:40] or len(told) > 1 << 19, told[:100]
        found = told.find(b'"message": "')
        if found >= 0:
            said = told[found + 12 :].partition(b'"')[0].decode("utf-8", "replace")[:200]
        return said


def _frame(message: bytes) -> bytes:
    size = len(message)
    head = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 1 << 16 else None
    return b"\x81" + (head or b"\xff" + struct.pack(">Q", size)) + bytes(4) + message
