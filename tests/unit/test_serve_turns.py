"""The event loop of the server: no caller decides how long one of its turns takes, counted in calls, not in seconds."""

import asyncio
import base64
import contextlib
import json
import sys
import threading

import numpy as np
import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits  # noqa: E402
from higgs_tts.engine.serve import bodies, calls, clips  # noqa: E402
from higgs_tts.tests.speech_servers import ask, running_loop, wav_file  # noqa: E402

MOST_CALLS = 100_000  # of Python and C functions in a turn of the loop; the text that took 91 s makes millions
SMALL = 1 << 16  # bytes that may be parsed in the loop
FILES = {"listdir", "scandir", "open", "open_code", "iterdir"}
SHORT = {"input": "One apple.", "max_new_tokens": 5, "retries": 0, "response_format": "pcm"}
CONFIG = {"type": "session.config", "max_new_tokens": 5, "retries": 0, "stream_audio": True}
CLIP = base64.b64encode(wav_file(np.random.default_rng(1).uniform(-0.3, 0.3, 29 * 24_000).astype("float32"))).decode()
DONE = {"type": "input.done"}


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine:
        yield engine


class Watchdog:
    """Counts the turns of a loop and the calls in each, and what its thread does that belongs into another one."""

    def __init__(self, loop, monkeypatch):
        self.loop, self.turns, self.most, self.calls, self.wrong, self._thread = loop, 0, 0, 0, [], None
        for module, name in ((bodies.json, "loads"), (calls.base64, "b64decode"), (clips.hashlib, "sha256")):
            monkeypatch.setattr(module, name, self._watched(getattr(module, name)))

    def _watched(self, work):
        def watched(data, *given, **named):
            if threading.get_ident() == self._thread and len(data) > SMALL:
                self.wrong.append(f"{work.__name__} of {len(data)} bytes")
            return work(data, *given, **named)

        return watched

    def _count(self, frame, event, what):
        self.calls += event in ("call", "c_call")
        if event == "c_call" and what.__name__ in FILES:
            self.wrong.append(what.__name__)

    async def _tick(self):
        self._thread = threading.get_ident()
        sys.setprofile(self._count)
        try:
            while True:
                self.calls = 0
                await asyncio.sleep(0)
                self.most, self.turns = max(self.most, self.calls), self.turns + 1
        finally:
            sys.setprofile(None)

    @contextlib.contextmanager
    def watching(self):
        """Watch the loop, and check what was seen at the end."""
        ticking = asyncio.run_coroutine_threadsafe(self._tick(), self.loop)
        try:
            yield self
        finally:
            ticking.cancel()
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(60)
        assert not self.wrong and self.most < MOST_CALLS, (self.wrong[:5], self.most)


@pytest.fixture(scope="module")
def served(engine, tmp_path_factory):
    with running_loop(engine, tmp_path_factory.mktemp("voices"), limits=CallLimits(max_calls=8)) as (port, _, loop, _):
        yield port, loop


@pytest.fixture
def watchdog(served, monkeypatch):
    return Watchdog(served[1], monkeypatch)


def form(name, sound):
    parts = [b'name="name"\r\n\r\n' + name.encode(), b'name="audio_sample"; filename="a"\r\n\r\n' + sound]
    return b"".join(b"--edge\r\nContent-Disposition: form-data; %s\r\n" % part for part in parts) + b"--edge--\r\n"


REQUESTS = {
    "speech": ("POST", "/v1/audio/speech", SHORT),
    "a voice": ("POST", "/v1/audio/speech", {**SHORT, "voice": "amber"}),
    "no such voice": ("POST", "/v1/audio/speech", {**SHORT, "voice": "nobody"}),
    "a clip": ("POST", "/v1/audio/speech", {**SHORT, "ref_audio": CLIP}),
    "no clip": ("POST", "/v1/audio/speech", {**SHORT, "ref_audio": "A" * 13_000_000}),
    "a long pause": ("POST", "/v1/audio/speech", {**SHORT, "input": "One. " + "[pause 60] " * 9 + "Two."}),
    "an endless text": ("POST", "/v1/audio/speech", {"ref_audio": "", **SHORT, "input": "x" * 8_000_000}),
    "one without a clip": ("POST", "/v1/audio/speech", {**SHORT, "input": "x" * 8_000_000}),
    "brackets": ("POST", "/v1/audio/speech", b'{"ref_audio": ' + b"[" * 19_000_000),
    "a batch": ("POST", "/v1/audio/speech/batch", {"items": [SHORT, {**SHORT, "ref_audio": CLIP}]}),
    "a wide batch": ("POST", "/v1/audio/speech/batch", b'{"ref_audio": "", "items": [' + b"{}," * 6_000_000),
    "no form": ("POST", "/v1/audio/voices", b"\r\n--edge" * 1_000_000),
    "a form": ("POST", "/v1/audio/voices", form("new", base64.b64decode(CLIP))),
    "a deletion": ("DELETE", "/v1/audio/voices/nobody", None),
    "an end": ("GET", "/v1/audio/speech/none", None),
    **{path: ("GET", path, None) for path in ("/health", "/metrics", "/v1/models", "/v1/audio/voices", "/none")},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_no_request_holds_up_the_loop(served, watchdog, name):
    method, path, body = REQUESTS[name]
    headers = ["Content-Type: multipart/form-data; boundary=edge"] if path.endswith("voices") else []
    with watchdog.watching():
        assert ask(served[0], method, path, body, headers)[0] in (200, 400, 404, 413)


def said(text):
    return {"type": "input.text", "text": text}


MESSAGES = {
    "line ends": [said("\n]" * 9500)],
    "lines": [said("a\n" * 9500)],
    "markers": [said("[pause 1]" * 2000)],
    "tags": [said("<|emotion:awe|>\n" * 1000)],
    "abbreviations": [said("e.g. a]" * 2500)],
    "one word": [said("x" * 19_000)],
    "letters": [said("e.g. "[at % 5]) for at in range(1000)],
    "commits": [{"type": "input.commit"}] * 1400,
    "ends": [DONE] * 1400,
    "cancels": [{"type": "input.cancel"}] * 200,
    "configurations": [CONFIG] * 50,
    "a clip": [{**CONFIG, "ref_audio": CLIP}],
    "unknown": [{"type": "x"}] * 900,
    "no JSON": ["{"] * 900,
    "brackets": ["[" * 1_000_000],
}


@pytest.mark.parametrize("name", MESSAGES)
def test_no_message_holds_up_the_loop_and_it_turns_after_each(served, watchdog, name):
    messages = [CONFIG, *MESSAGES[name], {"type": "input.cancel"}]
    cancels = sum(message == messages[-1] for message in messages)

    async def talk():
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{served[0]}/v1/audio/speech/stream", max_msg_size=0) as socket,
        ):
            reading = asyncio.ensure_future(read(socket))
            for message in messages:
                await socket.send_str(message if isinstance(message, str) else json.dumps(message))
            await reading

    async def read(socket):
        seen = 0
        while seen < cancels:
            got = await socket.receive(120)
            seen += got.type is aiohttp.WSMsgType.TEXT and json.loads(got.data)["type"] == "input.cancelled"

    with watchdog.watching():
        asyncio.run(talk())
    assert watchdog.turns >= len(messages)
