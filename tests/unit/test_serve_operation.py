"""Operation of a server: metrics, access log, limit of seconds, and a graceful stop."""

import asyncio
import gc
import itertools
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED, Engine, EngineConfig, HiggsError

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.core.config import CallLimits
from higgs_tts.engine.serve.connections import CallerConnections
from higgs_tts.engine.serve.metrics import ServerMetrics
from higgs_tts.engine.serve.serve import warm_up
from higgs_tts.engine.serve.speaker import SpeakerThread, SpeechJob
from higgs_tts.engine.serve.streams import EventStream
from higgs_tts.engine.serve.voices import VoiceFolder
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for

SHORT = {"input": "One apple.", "seed": 3, "max_new_tokens": 12, "retries": 0, "response_format": "pcm"}
LONG = {**SHORT, "input": "This sentence goes on. " * 12, "max_new_tokens": 2000}
SAMPLE = re.compile(r"^(higgs_tts_\w+?)(?:\{([^}]*)\})? (\S+)$")


@pytest.fixture
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine:
        yield engine


@pytest.fixture
def gate(before_steps):
    """gate(steps): the model stops after so many steps until the returned event is set."""

    def begin(steps):
        event, count = threading.Event(), itertools.count()

        def hold(backend):
            assert next(count) < steps or event.wait(600)

        before_steps(hold)
        return event

    return begin


def unread(caller):
    """Return how many bytes have reached a caller that reads nothing."""
    caller.setblocking(False)
    try:
        return len(caller.recv(1 << 23, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


def metrics(port):
    status, headers, body = ask(port, "GET", "/metrics")
    assert status == 200 and headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(body.decode())


def read(text):
    """Return samples by (name, labels), after checking the format: HELP and TYPE before a family's samples."""
    found, family, kind = {}, "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            kind = line.split()[3]
        else:
            name, labels, value = SAMPLE.match(line).groups()
            assert re.fullmatch(family + ("(_bucket|_sum|_count)" if kind == "histogram" else ""), name)
            found[name, labels or ""] = float(value)
    assert text.endswith("\n")
    return found


class TestMetrics:
    def test_calls_errors_and_speech_are_counted(self, engine):
        with running(engine, limits=CallLimits(max_characters=500)) as (port, _):
            heard = ask(port, body=SHORT)[2]
            whole = ask(port, body={**SHORT, "stream": False})[2]
            assert [ask(port, body=body)[0] for body in (b"{", {"input": "x" * 501}, {**SHORT, "voice": "no"})] == [
                400,
                400,
                404,
            ]
            ask(port, "GET", "/v1/no/such/path")
            batch = {"items": [SHORT, {"input": ""}]}
            assert ask(port, path="/v1/audio/speech/batch", body=batch)[0] == 200
            told = metrics(port)
        assert told["higgs_tts_calls_total", 'path="/v1/audio/speech",status="200"'] == 2
        assert told["higgs_tts_calls_total", 'path="/v1/audio/speech",status="400"'] == 2
        assert told["higgs_tts_calls_total", 'path="/v1/audio/speech/batch",status="200"'] == 1
        assert told["higgs_tts_calls_total", 'path="other",status="404"'] == 1
        errors = {labels: value for (name, labels), value in told.items() if name == "higgs_tts_errors_total"}
        assert errors == {'kind="invalid_request_error"': 3, 'kind="input_too_long"': 1, 'kind="voice_not_found"': 1}
        assert len(heard) == len(whole)
        assert told["higgs_tts_speech_seconds_total", ""] == pytest.approx(3 * len(heard) / 48_000, abs=0.01)
        assert told["higgs_tts_first_sound_seconds_count", ""] == 1
        assert told["higgs_tts_first_sound_seconds_bucket", 'le="+Inf"'] == 1
        assert [told[f"higgs_tts_{name}", ""] for name in ("calls_open", "rows_running", "rows_waiting")] == [0] * 3

    def test_rows_and_open_calls_are_counted(self, engine, gate):
        go_on = gate(30)  # frames are read some steps after they are made
        with running(engine) as (port, speaker):
            calls = [
                threading.Thread(target=ask, args=(port,), kwargs={"body": LONG | {"max_new_tokens": 36}})
                for _ in range(3)
            ]
            for call in calls:
                call.start()
            wait_for(lambda: speaker.speaking and metrics(port)["higgs_tts_rows_running", ""])
            wait_for(lambda: metrics(port)["higgs_tts_calls_open", ""] >= 3)
            go_on.set()
            for call in calls:
                call.join()
            told = metrics(port)
        assert told["higgs_tts_calls_open", ""] == told["higgs_tts_rows_running", ""] == 0

    def test_disconnects_are_counted_as_their_own_error(self, engine):
        with running(engine) as (port, speaker):
            data = json.dumps(LONG).encode()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
                connection.sendall(head.encode() + data)
                assert b"200 OK" in connection.recv(1 << 12)
            wait_for(lambda: not speaker.speaking)
            told = metrics(port)
        assert told["higgs_tts_errors_total", 'kind="disconnected"'] == 1
        assert told["higgs_tts_calls_total", 'path="/v1/audio/speech",status="499"'] == 1

    def test_buckets_are_cumulative(self):
        counted = ServerMetrics()
        for seconds in (0.01, 0.05, 0.06, 99):
            counted.first_sound(seconds)
        told = read(counted.text(7, calls_open=0, rows_running=0, rows_waiting=0))
        buckets = [value for (name, _), value in told.items() if name.endswith("_bucket")]
        assert buckets == [2, *[3] * 11, 4] and told["higgs_tts_first_sound_seconds_sum", ""] == pytest.approx(99.12)
        assert told["higgs_tts_adapter_changes_total", ""] == 7

    def test_the_time_to_try_again_is_that_of_the_answers_so_far(self):
        now = [0.0]
        counted = ServerMetrics(lambda: now[0])
        assert counted.seconds_to_answer(256) == 1
        for now[0] in range(10):
            counted.answered("/v1/audio/speech", 200, "")
            counted.answered("/health", 200, "")
        now[0] = 10.0
        assert counted.seconds_to_answer(7) == 7 and counted.seconds_to_answer(256) == 60
        now[0] = 100.0
        assert counted.seconds_to_answer(256) == 1

    def test_metrics_need_the_key(self, engine):
        with running(engine, key="secret") as (port, _):
            assert ask(port, "GET", "/metrics")[0] == 401
            assert ask(port, "GET", "/metrics", headers=["Authorization: Bearer secret"])[0] == 200


def test_health_tells_of_the_workers_those_with_the_key(engine, monkeypatch):
    workers = [{"state": "running", "machine": "here"}, {"state": "starting"}]

    def health(port, *headers):
        status, _, body = ask(port, "GET", "/health", headers=headers)
        return status, json.loads(body)

    monkeypatch.setattr(engine, "workers", lambda: workers)
    with running(engine, key="secret") as (port, _):
        assert health(port) == (200, {"status": "healthy"})
        assert health(port, "Authorization: Bearer secret") == (200, {"status": "healthy", "workers": workers})
        workers[:] = [{"state": "lost"}, {"state": "not answering"}]
        assert health(port) == (503, {"status": "unhealthy"})


def test_the_access_log_has_one_line_per_call_without_texts_or_names(engine, caplog):
    with caplog.at_level(logging.INFO, "higgs_tts.serve.access"), running(engine) as (port, _):
        ask(port, body=SHORT)
        ask(port, body={**SHORT, "voice": "nobody"})
        ask(port, "DELETE", "/v1/audio/voices/se%0Acret")
        ask(port, "GET", "/health")
        ask(port, "GET", "/metrics")
    lines = [record.getMessage() for record in caplog.records]
    shapes = [re.sub(r"\d+\.\d\d s", "T", line).rstrip() for line in lines]
    assert shapes == [
        "127.0.0.1 POST /v1/audio/speech 200 T",
        "127.0.0.1 POST /v1/audio/speech 404 T voice_not_found",
        "127.0.0.1 DELETE /v1/audio/voices/{name} 404 T voice_not_found",
    ]


class TestSeconds:
    def test_a_call_that_takes_too_long_gets_an_error(self, engine, gate):
        go_on = gate(0)
        with running(engine, limits=CallLimits(max_seconds=0.2)) as (port, speaker):
            for body in (SHORT, {**SHORT, "stream": False}):
                answer = ask(port, body=body)
                assert answer[0] == 504 and error_of(answer)["code"] == "time_limit"
                assert "limit of 0.2 s" in error_of(answer)["message"]
            batch = json.loads(ask(port, path="/v1/audio/speech/batch", body={"items": [SHORT]})[2])
            assert batch["results"][0]["error"]["code"] == "time_limit"
            assert metrics(port)["higgs_tts_errors_total", 'kind="time_limit"'] == 3
            go_on.set()
            wait_for(lambda: not speaker.speaking)

    def test_a_stream_that_takes_too_long_ends_with_an_error(self, engine, gate):
        go_on = gate(30)
        with running(engine, limits=CallLimits(max_seconds=3)) as (port, _):
            status, _, body = ask(port, body={**LONG, "stream_format": "sse"})
            go_on.set()
        assert status == 200 and body.count(b"speech.audio.delta") > 2
        assert b"event: error" in body and b"limit of 3 s" in body and b"speech.audio.done" not in body

    def test_it_stops_a_call_whose_reader_is_slow(self, engine, monkeypatch):
        reads, hear = threading.Event(), EventStream.hear

        async def slowly(stream, wav):
            await hear(stream, wav)
            await asyncio.to_thread(reads.wait, 60)

        monkeypatch.setattr(EventStream, "hear", slowly)
        with running(engine, limits=CallLimits(max_seconds=0.8)) as (port, speaker):
            answers, body = [], {**LONG, "input": LONG["input"] * 50, "stream_format": "sse"}  # minutes of work
            call = threading.Thread(target=lambda: answers.append(ask(port, body=body)))
            call.start()
            wait_for(lambda: speaker.speaking)
            wait_for(lambda: not speaker.speaking, 60)
            reads.set()
            call.join()
        ((_, _, body),) = answers
        assert b"limit of 0.8 s" in body and b"speech.audio.done" not in body

    def test_a_call_within_the_time_limit_is_answered(self, engine):
        with running(engine, limits=CallLimits(max_seconds=600)) as (port, _):
            assert ask(port, body=SHORT)[0] == 200


no_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows sends other processes no signals")


class TestStopping:
    @pytest.fixture
    def served(self, pytestconfig):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "engine", "serve", "--device", "cpu", "--port", str(port), "--access-log"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, cwd=pytestconfig.rootpath, env=environment, **pipes) as process:
            assert "stop with Ctrl+C" in process.stdout.readline()
            wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            try:
                yield process, port
            finally:
                process.kill()

    @pytest.fixture
    def stream(self, served, request):
        """A connection that has begun to hear a sentence, repeated as often as the parameter says."""
        text = "This sentence goes on. " * getattr(request, "param", 4)
        data = json.dumps({**LONG, "input": text, "stream_format": "sse"}).encode()
        with socket.create_connection(("127.0.0.1", served[1]), timeout=120) as connection:
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            assert b"200 OK" in connection.recv(1 << 10)
            yield connection

    @staticmethod
    def rest(connection):
        heard = b""
        while part := connection.recv(1 << 16):
            heard += part
        return heard

    @no_signals
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_stopping_finishes_speech_in_progress(self, served, stream, number):
        process, port = served
        process.send_signal(number)
        assert "finishing what is being spoken (1 calls)" in process.stdout.readline()
        heard = self.rest(stream)
        assert b"speech.audio.done" in heard and heard.endswith(b"0\r\n\r\n")
        assert process.wait(60) == 0 and socket.socket().connect_ex(("127.0.0.1", port))
        assert re.search(r"127\.0\.0\.1 POST /v1/audio/speech 200 \d+\.\d\d s", process.stderr.read())

    @no_signals
    @pytest.mark.parametrize("stream", [600], indirect=True)
    def test_a_second_signal_stops_at_once(self, served, stream):
        process, _ = served
        process.send_signal(signal.SIGINT)
        assert "Ctrl+C again stops at once" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"speech.audio.done" not in self.rest(stream)
        assert process.wait(60) == 0 and "Traceback" not in process.stderr.read()

    @pytest.mark.parametrize("kinds", [("whole", "sse"), ("a body", "a frame")])
    def test_callers_that_read_nothing_cannot_keep_it_from_ending(self, served, kinds):
        process, port = served
        text = {**LONG, "input": "One. " + "[pause 60] " * 6 + "Two.", "max_new_tokens": 5, "response_format": "wav"}

        def sent(kind):
            if kind == "a frame":
                head = b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
                head += b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                head += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
                return head + b"\x81\xff" + (1 << 20).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 1000
            data = json.dumps(text | ({"stream": False} if kind == "whole" else {"stream_format": "sse"})).encode()
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            return head.encode() + (data[:-1] if kind == "a body" else data)

        callers = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(4)]
        for number, caller in enumerate(callers):
            caller.sendall(sent(kinds[number % 2]))
        answers, counts = "whole" in kinds, []
        wait_for(lambda: metrics(port)["higgs_tts_calls_open", ""] >= (4 if answers else 2))  # without the bodies
        while len(counts) < 5 or counts[-5:] != 5 * counts[-1:] or (answers and 0 in counts[-1]):
            time.sleep(0.1)  # until what they do not read waits
            counts.append([unread(caller) for caller in callers])
            assert len(counts) < 600, "the answers do not come to rest"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(60)
        assert time.monotonic() - began < 10 and "Traceback" not in process.stderr.read()
        for caller in callers:
            caller.close()

    @no_signals
    def test_an_idle_server_stops_silently(self, served):
        process, _ = served
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


class TestReady:
    def test_a_port_is_taken_at_once_and_answers_once_ready(self, engine):
        async def listens():
            connections, ready = CallerConnections(10), asyncio.Event()
            made = asyncio.ensure_future(connections.listen(asyncio.Protocol, "127.0.0.1", 0, ready.wait))
            other = asyncio.ensure_future(connections.listen(asyncio.Protocol, "127.0.0.1", 99999, ready.wait))
            with pytest.raises(OverflowError):
                await other
            assert not made.done()
            ready.set()
            (listening,) = (listener := await made).sockets
            address = listening.getsockname()
            with socket.create_connection(address):
                pass
            listener.close()

        asyncio.run(listens())

    def test_a_sentence_in_the_default_voice_is_spoken_before(self, engine, tmp_path, monkeypatch):
        shutil.copy(BUILT_IN_CLIPS / "amber.flac", tmp_path / "default.flac")
        begun, begin = [], SpeechJob.begin
        monkeypatch.setattr(SpeechJob, "begin", lambda job, planner: begun.append(job) or begin(job, planner))
        speaker = SpeakerThread(engine)
        try:
            asyncio.run(warm_up(speaker, VoiceFolder(tmp_path)))
            assert not speaker.speaking and gc.get_freeze_count()
        finally:
            speaker.close()
            gc.unfreeze()
        (job,) = begun
        assert job.voices[""].codes.shape[1] == 8 and job.params.max_frames == 25

    def test_a_default_voice_that_cannot_be_used_is_logged(self, engine, tmp_path, caplog):
        (tmp_path / "default.flac").write_bytes(b"no sound")
        speaker = SpeakerThread(engine)
        try:
            asyncio.run(warm_up(speaker, VoiceFolder(tmp_path)))
        finally:
            speaker.close()
            gc.unfreeze()
        assert "The voice 'default' cannot be used" in caplog.text

    def test_what_speaking_raises_ends_the_start(self, engine):
        speaker = SpeakerThread(engine)
        speaker.close()
        with pytest.raises(HiggsError, match="shutting down"):
            asyncio.run(warm_up(speaker, VoiceFolder(None)))
