"""Connections that wait, and what is held of them: every wait has an end, and everything is counted."""

import asyncio
import base64
import contextlib
import json
import socket
import types

import numpy as np
import pytest
from higgs_tts.engine import Engine, EngineConfig

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits  # noqa: E402
from higgs_tts.engine.serve import connections, text_stream  # noqa: E402
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for, wav_file  # noqa: E402

SHORT = {"input": "One apple.", "max_new_tokens": 5, "retries": 0, "response_format": "pcm"}
CONFIG = {"type": "session.config", "max_new_tokens": 5, "retries": 0}
PATH = "/v1/audio/speech"
CLIP = base64.b64encode(wav_file(np.random.default_rng(1).uniform(-0.3, 0.3, 14 * 24_000).astype("float32"))).decode()


@pytest.fixture(scope="module")
def engine(written):
    with Engine(EngineConfig(str(written["v3"]), device="cpu", context=512)) as engine:
        yield engine


LONG = {**SHORT, "input": "One. " + "[pause 60] " * 5 + "Two.", "response_format": "wav"}
HELLO = (
    f"GET {PATH}/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def messages(**config):
    """Return the frames of a session that speaks LONG at once."""
    told = [{**CONFIG, "split_granularity": "none", **config}, {"type": "input.text", "text": LONG["input"]}]
    frames = [json.dumps(one).encode() for one in (*told, {"type": "input.done"})]
    return b"".join(b"\x81\xfe" + len(one).to_bytes(2, "big") + bytes(4) + one for one in frames)


def body(**fields):
    return json.dumps({**LONG, **fields}).encode()


UNREAD = {  # path, what comes before the request, and its body or messages
    "events": (PATH, "", body(stream_format="sse")),
    "a stream": (PATH, "", body()),
    "a stream of pcm": (PATH, "", body(response_format="pcm")),
    "a whole answer": (PATH, "", body(stream=False)),
    "a batch": (f"{PATH}/batch", "", json.dumps({"items": [{"input": LONG["input"], "max_new_tokens": 5}]}).encode()),
    "sound of a text that streams in": (f"{PATH}/stream", HELLO, messages(stream_audio=True)),
    "a sentence of such a text": (f"{PATH}/stream", HELLO, messages()),
    "sound with word times": (f"{PATH}/stream", HELLO, messages(stream_audio=True, word_timestamps=True)),
}


def opened(port, head, body=b""):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # so that the kernel holds little
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    connection.sendall(head.encode() + body)
    return connection


def post(length, path=PATH):
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"


def rest(connection):
    """Return all that comes until the server ends the connection."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            heard += part
    connection.close()
    return heard


@pytest.mark.parametrize("refusals", [0, 3])
def test_callers_who_reset_their_connection_end_no_server_on_windows(engine, monkeypatch, refusals):
    """asyncio's own server would be closed there for good. Elsewhere the same listener is tested."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        kind, left = type(loop), [None] * refusals
    accept = kind.sock_accept

    async def refuse(self, listening):
        try:
            connection, address = await accept(self, listening)
        except OSError:  # Windows itself reports a reset
            del left[-1:]
            raise
        if left:
            left.pop()
            connection.close()
            raise OSError(64, "The specified network name is no longer available")
        return connection, address

    monkeypatch.setattr(kind, "sock_accept", refuse)
    monkeypatch.setattr(connections, "sys", types.SimpleNamespace(platform="win32"))
    with running(engine) as (port, _):
        for _ in range(10):
            gone = opened(port, post(9))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + bytes(7))  # closes with a reset
            gone.close()
        assert ask(port, body=SHORT)[0] == 200 and not left
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


class TestWaits:
    def test_a_silent_connection_ends(self, engine, monkeypatch):
        monkeypatch.setattr(connections, "FIRST_SECONDS", 0.3)
        with running(engine) as (port, _):
            for head in ("", "GET /health HTTP/1.1\r\nHost: 127.0"):
                assert rest(opened(port, head)) == b""

    def test_a_body_that_stops_on_its_way_ends_with_a_sentence(self, engine, monkeypatch):
        monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
        with running(engine) as (port, _):
            for path in (PATH, f"{PATH}/batch", "/v1/audio/voices"):
                with opened(port, post(1000, path), b"{") as caller:
                    assert b" 408 " in (told := caller.recv(1 << 12)) and b"did not arrive in time" in told

    @pytest.mark.parametrize("stream", [False, "sse"])
    def test_a_caller_that_reads_nothing_is_dropped_and_frees_its_call(self, engine, monkeypatch, stream):
        monkeypatch.setattr(connections, "WRITE_SECONDS", 0.8)
        kind = {"stream_format": "sse"} if stream else {"stream": False}
        text = {**LONG, **kind}
        with running(engine) as (port, _):
            data = json.dumps(text).encode()
            callers = [opened(port, post(len(data)), data) for _ in range(2)]
            told = {}

            def calls():
                told.update(line.rsplit(" ", 1) for line in ask(port, "GET", "/metrics")[2].decode().splitlines())
                return told["higgs_tts_calls_open"]

            wait_for(lambda: calls() != "0")
            wait_for(lambda: calls() == "0")
            for caller in callers:
                caller.close()

    def test_pings_are_no_messages(self, engine, monkeypatch):
        monkeypatch.setattr(text_stream, "IDLE_SECONDS", 0.5)

        async def talk(port):
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"http://127.0.0.1:{port}{PATH}/stream", autoping=False) as caller,
            ):
                await caller.send_json(CONFIG)
                while (got := await caller.receive(60)).type is not aiohttp.WSMsgType.CLOSE:
                    if got.type is aiohttp.WSMsgType.TEXT and json.loads(got.data)["type"] == "error":
                        return json.loads(got.data)["code"]
                    await asyncio.sleep(0.05)
                    await caller.ping()

        with running(engine) as (port, _):
            assert asyncio.run(talk(port)) == "timeout"


class TestCounts:
    def test_unfinished_bodies_are_held_up_to_one_number_and_texts_go_on(self, engine, monkeypatch):
        made, seen = connections.CallerConnections, []
        monkeypatch.setattr(connections, "MOST_HELD", 4 << 20)
        name = "higgs_tts.engine.serve.app.CallerConnections"
        monkeypatch.setattr(name, lambda most: seen.append(made(most)) or seen[0])
        with running(engine) as (port, _):
            callers = [opened(port, post(18 << 20), b'{"ref_audio": "' + b"A" * (1 << 20)) for _ in range(4)]
            wait_for(lambda: seen[0].held >= 4 * ((1 << 20) - connections.FREE))  # or one of them is too much
            clip = ask(port, body={**SHORT, "ref_audio": CLIP})
            assert clip[0] == 503 and error_of(clip)["code"] == "overloaded" and b"too much at once" in clip[2]
            assert ask(port, body=SHORT)[0] == 200  # beside them
            for caller in callers:
                caller.close()
            wait_for(lambda: ask(port, body={**SHORT, "ref_audio": CLIP})[0] == 200)

    def test_unfinished_frames_are_held_up_to_the_same_number(self, engine, monkeypatch):
        monkeypatch.setattr(connections, "MOST_HELD", 3 << 20)
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        head = f"GET {PATH}/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}"
        head += "\r\n\r\n"
        frame = b"\x81\xff" + (18 << 20).to_bytes(8, "big") + b"\0\0\0\0"
        with running(engine) as (port, _):
            callers = [opened(port, head) for _ in range(8)]
            for caller in callers:
                assert b" 101 " in caller.recv(1 << 12)
            closed = []
            for caller in callers:
                with contextlib.suppress(OSError):
                    caller.sendall(frame + b"x" * (1 << 20))
            for caller in callers:
                caller.settimeout(2)
                with contextlib.suppress(TimeoutError):
                    closed.append(caller.recv(1 << 12))
            assert len(closed) >= 5 and all(b"too much at once" in one for one in closed)
            assert ask(port, body=SHORT)[0] == 200

    @pytest.mark.parametrize("kind", UNREAD)
    def test_answers_that_nobody_reads_are_held_up_to_the_same_number(self, engine, monkeypatch, kind):
        """Each caller is sent 14 MB, which is 29 MB before it is encoded; the kernel takes some of it."""
        path, head, data = UNREAD[kind]
        most, seen = 32 << 20, []

        class Seen(connections.CallerConnections):
            def __init__(self, most):
                super().__init__(most)
                self.peak, self.dropped = 0, 0
                seen.append(self)

            def shed(self):
                before = self.held
                super().shed()
                self.dropped += self.held < before
                self.peak = max(self.peak, self.held)

        monkeypatch.setattr(connections, "MOST_HELD", most)
        monkeypatch.setattr("higgs_tts.engine.serve.app.CallerConnections", Seen)
        with running(engine) as (port, _):
            callers = [opened(port, head + ("" if path.endswith("stream") else post(len(data), path)), data)
                       for _ in range(4)]  # fmt: skip
            wait_for(lambda: seen[0].dropped >= 2)
            assert most // 4 < seen[0].peak <= most
            assert ask(port, body=SHORT)[0] == 200  # beside them
            for caller in callers:
                caller.close()
            wait_for(lambda: seen[0].held == 0)

    def test_who_reads_nothing_is_dropped_before_who_holds_more(self, monkeypatch):
        monkeypatch.setattr(connections, "MOST_HELD", 1000)
        monkeypatch.setattr(connections, "FREE", 0)
        everyone = connections.CallerConnections(9)
        reads, slow, silent = (connections.Connection(everyone, asyncio.Protocol) for _ in range(3))
        for name, one in (("reads", reads), ("slow", slow), ("silent", silent)):
            everyone.admit(one, name, "127.0.0.1")
        slow.looks, silent.looks = 1, 2
        for one, size in ((silent, 100), (slow, 300), (reads, 600)):
            one.hold(size)
        reads.hold(50)
        assert [one.held for one in (reads, slow, silent)] == [650, 300, 0] and everyone.held == 950
        silent.hold(5000)  # it is gone, and counts nothing
        reads.hold(351)
        assert [one.held for one in (reads, slow, silent)] == [0, 0, 0] and everyone.held == 0

    def test_a_body_is_not_held_while_its_speech_streams(self, engine):
        """Nor after a call, whatever came with it."""
        counted = []
        with running(engine) as (port, _):
            release = connections.Connection.release

            def seen(connection):
                release(connection)
                counted.append(connection)

            connections.Connection.release = seen
            try:
                assert ask(port, body={**SHORT, "ref_audio": CLIP})[0] == 200
                assert ask(port, body={**SHORT, "ref_audio": "?" * 1_000_000})[0] == 400
            finally:
                connections.Connection.release = release
        assert len(counted) >= 3 and not {one.is_excess for one in counted} - {False}

    def test_connections_are_counted(self, engine, monkeypatch):
        monkeypatch.setattr("higgs_tts.engine.serve.app.SPARE", 2)
        with running(engine, limits=CallLimits(max_calls=2)) as (port, _):
            callers = [opened(port, "") for _ in range(4)]
            answer = ask(port, "GET", "/health")
            assert answer[0] == 503 and "limit of connections" in error_of(answer)["message"]
            assert answer[1]["retry-after"] == "1"
            callers.pop().close()
            wait_for(lambda: ask(port, "GET", "/health")[0] == 200)
            for caller in callers:
                caller.close()

    def test_an_address_has_at_most_half_of_them(self, engine, monkeypatch):
        monkeypatch.setattr("higgs_tts.engine.serve.app.SPARE", 2)
        monkeypatch.setattr(connections, "is_loopback", lambda address: False)
        with running(engine, limits=CallLimits(max_calls=2)) as (port, _):
            callers = [opened(port, "") for _ in range(2)]
            answer = ask(port, "GET", "/health")
            assert answer[0] == 429 and "your address" in error_of(answer)["message"]
            for caller in callers:
                caller.close()

    def test_answers_that_wait_are_counted(self, engine, monkeypatch):
        monkeypatch.setattr(text_stream, "MOST_WAITING", 20)

        async def talk(port):
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"http://127.0.0.1:{port}{PATH}/stream") as caller,
            ):
                await caller.send_json({**CONFIG, "max_new_tokens": 200})  # longer than sending these takes
                await caller.send_json({"type": "input.text", "text": "One apple lies on the table. Two"})
                for _ in range(30):
                    await caller.send_json({"type": "input.commit"})
                async for got in caller:  # sound may come before it
                    if got.type == aiohttp.WSMsgType.TEXT and (told := json.loads(got.data))["type"] == "error":
                        return told

        with running(engine) as (port, _):
            told = asyncio.run(asyncio.wait_for(talk(port), 60))
        assert told["code"] == "too_many_messages" and "20 answers" in told["message"]

    def test_refused_messages_are_counted(self, engine, monkeypatch):
        monkeypatch.setattr(text_stream, "MOST_ERRORS", 20)

        async def talk(port):
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"http://127.0.0.1:{port}{PATH}/stream") as caller,
            ):
                await caller.send_json(CONFIG)
                for _ in range(30):
                    await caller.send_str("{")
                return [json.loads(got.data)["type"] async for got in caller]

        with running(engine) as (port, _):
            assert asyncio.run(talk(port)) == ["session.configured", *["error"] * 20]
