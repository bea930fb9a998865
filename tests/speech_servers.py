"""Servers for tests: ours in a thread, and small fakes of other servers, well-behaved or not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
import threading
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

import numpy as np
from higgs_tts.engine import estimate_seconds

SPEECH = "/v1/audio/speech"


def wait_for(condition, seconds=120):
    """Wait until condition() is true. A loop without sleep would take the interpreter's lock from the speech."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def running(engine, voices=None, **given):
    """Yield (port, speaker) of our server in a thread."""
    with running_loop(engine, voices, **given) as (port, speaker, _, _):
        yield port, speaker


@contextlib.contextmanager
def running_loop(engine, voices=None, adapted=MappingProxyType({}), **given):
    """Yield (port, speaker, event loop, kill) of our server in a thread. kill(): drop all calls, and take no more."""
    from aiohttp import web
    from higgs_tts.engine.serve.app import SpeechServer
    from higgs_tts.engine.serve.speaker import SpeakerThread
    from higgs_tts.engine.serve.voices import VoiceFolder

    speaker, loop = SpeakerThread(engine, adapted=adapted), asyncio.new_event_loop()
    server = SpeechServer(speaker, VoiceFolder(voices), "embedded", **given)
    runner = web.AppRunner(server.app(), handler_cancellation=True)
    loop.run_until_complete(runner.setup())
    listener = loop.run_until_complete(
        server.connections.listen(runner.server, "127.0.0.1", 0, partial(asyncio.sleep, 0))
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def kill():
        loop.call_soon_threadsafe(lambda: (listener.close(), server.connections.abort()))

    try:
        yield listener.sockets[0].getsockname()[1], speaker, loop, kill
    finally:
        loop.call_soon_threadsafe(listener.close)
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        speaker.close()


def ask(port: int, method="POST", path=SPEECH, body=None, headers=()):
    """Return (status, headers, body) of one call over a bare socket."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        *([] if any(line.startswith("Host:") for line in headers) else ["Host: 127.0.0.1"]),
        "Connection: close",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + data)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *others = head.decode().split("\r\n")
    told = {name.lower(): value for name, _, value in (line.partition(": ") for line in others)}
    return int(first.split()[1]), told, _unchunked(rest) if told.get("transfer-encoding") == "chunked" else rest


def _unchunked(data):
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole, data = whole + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return whole


def error_of(answer) -> dict:
    """Return the error in an answer of `ask`, in OpenAI's envelope."""
    return json.loads(answer[2])["error"]


def sound_of(text: str, rate: int = 24_000, seconds: float | None = None) -> np.ndarray:
    """Return a sound as long as speech of a text, loud, never silent, and different for each text."""
    count = int(rate * (estimate_seconds(text) if seconds is None else seconds))
    return np.random.default_rng(zlib.crc32(text.encode())).uniform(-0.3, 0.3, max(1, count)).astype("float32")


def wav_file(wav: np.ndarray, rate: int = 24_000, subtype: str = "PCM_16") -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, wav, rate, format="WAV", subtype=subtype)
    return file.getvalue()


@dataclass
class Reply:
    """A fake's answer. hangs: it never comes; cut: the connection closes half-way.

    parts: a body in parts, with callables in between that wait for something.
    """

    body: bytes = b""
    status: int = 200
    headers: dict = field(default_factory=lambda: {"Content-Type": "audio/wav"})
    hangs: bool = False
    cut: bool = False
    parts: tuple = ()


def refusal(status: int, message: str = "", headers: dict | None = None) -> Reply:
    """Return an error in OpenAI's envelope, which all servers use."""
    body = json.dumps({"error": {"message": message, "type": "error", "param": None, "code": None}}).encode()
    return Reply(body, status, {"Content-Type": "application/json", **(headers or {})})


def spoken(body: dict) -> Reply:
    """Return speech of the requested text."""
    return Reply(wav_file(sound_of(body["input"])))


def event(kind: str, **content) -> bytes:
    """Return a server-sent event with OpenAI's names."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **content})}\n\n".encode()


def streamed(body: dict, wait=lambda: None, cut: bool = False) -> Reply:
    """Return speech as events, the second half once wait() returns. cut: without the second half."""
    data = wav_file(sound_of(body["input"]))[44:]
    half = len(data) // 4 * 2
    first, rest = (
        event("speech.audio.delta", audio=base64.b64encode(part).decode()) for part in (data[:half], data[half:])
    )
    parts = (first, wait) if cut else (first, wait, rest, event("speech.audio.done", finish_reason="stop"))
    return Reply(headers={"Content-Type": "text/event-stream"}, parts=parts)


class Fake:
    """A fake server. kind: "sglang", "vllm", or "plain", which does not identify itself.

    reply(number, body): the answer to the call of that number. calls: their bodies; keys: their Authorization; left:
    callers that disconnected while a call hung.
    """

    def __init__(self, kind: str = "sglang", reply=lambda number, body: spoken(body), model: str = "higgs", **paths):
        self.kind, self.reply, self.model, self.paths = kind, reply, model, paths
        self.calls, self.keys, self.asked = [], set(), []
        self.left, self.hanging = threading.Semaphore(0), threading.Semaphore(0)
        self.lock = threading.Lock()

    def __enter__(self) -> Fake:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                fake.asked.append(self.path)
                fake.keys.add(self.headers.get("Authorization"))
                fake.send(self, fake.told(self.path))

            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                with fake.lock:
                    fake.calls.append(json.loads(data))
                    number = len(fake.calls)
                fake.keys.add(self.headers.get("Authorization"))
                fake.send(self, fake.reply(number, json.loads(data)))

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def told(self, path: str) -> Reply:
        """Return its model information, as from SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0."""
        if path in self.paths:
            given = self.paths[path]
            return given if isinstance(given, Reply) else _json(given)
        owner = {"sglang": "sglang-omni", "vllm": "vllm"}.get(self.kind, "nobody")
        if path == "/health" and self.kind != "plain":
            return _json({"status": "healthy"}) if self.kind == "sglang" else Reply(b"", headers={})
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": owner}]})
        return refusal(404, "Not Found")

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply):
        if reply.hangs:
            self.hanging.release()
            handler.connection.settimeout(60)
            with contextlib.suppress(OSError):
                handler.connection.recv(1)  # returns when the caller goes
            self.left.release()
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if not reply.parts:
            handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        for part in reply.parts:
            part() if callable(part) else handler.wfile.write(part)
        with contextlib.suppress(OSError):
            handler.wfile.write(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)
        handler.close_connection = True


def _json(told: object) -> Reply:
    return Reply(json.dumps(told).encode(), headers={"Content-Type": "application/json"})
