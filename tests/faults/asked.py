"""Our server, in this process, as a surface: requests with damaged headers and bodies, sent to its port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import pathlib
import random
import re
import socket
import time
import urllib.request

import numpy as np

from ...engine import EMBEDDED, Engine, EngineConfig, HiggsError
from ..speech_servers import running_loop
from . import mutations
from .samples import PAUSES

SPEECH, VOICES = "POST /v1/audio/speech", "POST /v1/audio/voices"
PATIENCE = 2.5  # seconds; a call still open then is streaming, and is closed
OTHERS = 60.0  # seconds of wall time for another caller, counted separately
SHORT = {"model": "tts-1", "voice": "alloy", "input": "Hi.", "seed": 3, "max_new_tokens": 12, "retries": 0}
TYPES = (
    "application/json; charset=foo", "application/json; charset=hex", "application/json; charset=utf-16", "", "é",
    "\x00", "application/json; charset=punycode", "text/plain", "multipart/form-data", "multipart/form-data; boundary=",
    "multipart/form-data; boundary=" + "x" * 500, "application/x-www-form-urlencoded", 'a/b; c="d', "a" * 9000,
)  # fmt: skip
HEADS = (
    "Content-Encoding: gzip", "Content-Encoding: foo", "Content-Encoding: deflate", "Authorization: Bearer \xff\xfe",
    "Authorization: " + "x" * 5000, "Cookie: " + "a=b; " * 1500, "Range: bytes=0-", "X-A: b\x00c", "X-A: b\rc",
    "Accept: " + "*/*," * 1000, "If-None-Match: *", "Transfer-Encoding: foo", "X: \x7f",
)  # fmt: skip
EDGE = "b0undary"
LONGEST_TURN = "longest_turn"  # file in a child's folder


def requests() -> list[bytes]:
    """Return the bytes of one request of each kind."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(30_000) / 9), 24_000, format="WAV")
    clip = base64.b64encode(file.getvalue()).decode()
    bodies = [
        {**SHORT, "response_format": "pcm"},
        {**SHORT, "response_format": "wav", "temperature": 0.7, "top_p": 0.9, "top_k": 20, "index": 1, "speed": 1.0},
        {**SHORT, "response_format": "pcm", "stream": True, "stream_format": "sse", "extra_params": {"seed": 4}},
        {**SHORT, "ref_audio": f"data:audio/wav;base64,{clip}", "ref_text": "A text.", "response_format": "flac"},
        {
            **SHORT,
            "references": [{"audio_path": clip, "text": "A text."}],
            "scene": "A room.",
            "response_format": "pcm",
        },
    ]
    part = f'--{EDGE}\r\nContent-Disposition: form-data; name="{{}}"{{}}\r\n\r\n'
    form = part.format("name", "").encode() + b"anna\r\n" + part.format("ref_text", "").encode() + b"A text.\r\n"
    form += (
        part.format("audio_sample", '; filename="a.wav"').encode() + file.getvalue() + f"\r\n--{EDGE}--\r\n".encode()
    )
    calls = [request(SPEECH, "application/json", json.dumps(body).encode()) for body in bodies]
    return [*calls, request(VOICES, f"multipart/form-data; boundary={EDGE}", form)]


def request(line: str, kind: str, body: bytes, *heads: str) -> bytes:
    """Return a whole request."""
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", f"Content-Type: {kind}", *heads]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode("latin-1", "replace") + body


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Return the request with another body, and now and then another head."""
    head, _, body = data.partition(b"\r\n\r\n")
    line = head.partition(b" HTTP")[0].decode()
    kind = re.search(rb"Content-Type: ([^\r]*)", head)[1].decode()
    if not body.startswith(b"{"):
        body = mutations.bytes_of(rng, body, rng.choice((300, 600, None)), in_place=rng.random() < 0.5)
    elif rng.random() < 0.3:
        body = json.dumps({**SHORT, "input": mutations.text_of(rng, "Hi. ", PAUSES)[:25_000]}).encode()
    else:
        body = mutations.json_of(rng, body)
    heads = [rng.choice(HEADS)] if rng.random() < 0.1 else []
    return request(line, rng.choice(TYPES) if rng.random() < 0.1 else kind, body, *heads)


class Asked:
    """run(data, folder) and warm(folder) of the surface. Each child has a server of its own."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self.port = 0

    def warm(self, folder: pathlib.Path):
        """Start the server."""
        engine = self._stack.enter_context(Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)))
        (folder / "voices").mkdir()
        self.port, _, loop, _ = self._stack.enter_context(running_loop(engine, folder / "voices"))
        self._longest = 0.0
        asyncio.run_coroutine_threadsafe(self._tick(), loop)

    async def _tick(self):
        """Note the longest turn of the server's loop, to 2 ms, in CPU time, since the machine has other work."""
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.002)
            self._longest = max(self._longest, time.thread_time() - began)

    def check_others(self, folder: pathlib.Path):
        """Check that another caller is answered, and write down the longest turn of the loop so far, in ms."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=OTHERS) as answer:
            assert answer.status == 200
        (folder / LONGEST_TURN).write_text(f"{1000 * self._longest:.1f}")

    def run(self, data: bytes, folder: pathlib.Path) -> str:
        """Return the server's answer, after checking that it still serves others. Raises HiggsError if it refuses."""
        for path in (folder / "voices").iterdir():
            path.unlink()
        status, said = self._answer(data, PATIENCE)
        self.check_others(folder)
        if status is None:
            status, said = self._answer(request(SPEECH, "application/json", json.dumps(SHORT).encode()), OTHERS)
            assert status == 200, "others are not answered"
        assert status < 500 or status == 503, f"{status}: {said[:300]!r}"
        if status >= 400:
            try:
                said = json.loads(said)["error"]["message"]
            except ValueError:  # aiohttp answers what is not HTTP, on several lines
                said = said.partition("\n")[0]
            raise HiggsError(said)
        return str(status)

    def _answer(self, data: bytes, seconds: float) -> tuple[int | None, str]:
        """Return (status, body). No status if there was no complete answer in time."""
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
                connection.sendall(data)
                while part := connection.recv(1 << 16):
                    answer += part
        except TimeoutError:
            return None, ""
        except (ConnectionResetError, BrokenPipeError):  # the body was not read to its end
            pass
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head, "no answer at all"
        return int(head.split()[1]), body.decode("utf-8", "replace")
