"""The server over a Ray cluster: workers die while callers listen."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
pytest.importorskip("ray", reason="ray is not installed")

from higgs_tts.engine.engines.remote.connections import Connections
from higgs_tts.engine.serve.cluster.seats import Seat
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS
from higgs_tts.tests.ray_workers import ray_workers
from higgs_tts.tests.speech_servers import ask, error_of, running, wait_for

CONFIG = EngineConfig(str(EMBEDDED), device="cpu", context=1024)
CALLERS = 6


def body_of(number, **more):
    text = f"This is the sentence of caller number {number}, and it goes on."
    return {"input": text, "seed": number, "retries": 0, "response_format": "pcm", "max_new_tokens": 150, **more}


def samples(data):
    return np.frombuffer(data, "<i2").astype(int)


def same(data, other):
    return len(data) == len(other) and np.abs(samples(data) - samples(other)).max() <= 1


@pytest.fixture(scope="module")
def undisturbed():
    """The answers of one engine, by caller."""
    with Engine(CONFIG) as engine, running(engine) as (port, _):
        return [ask(port, body=body_of(number))[2] for number in range(CALLERS)]


@pytest.fixture(scope="module")
def cluster():
    with ray_workers(CONFIG, 2) as cluster:
        yield cluster


@pytest.fixture
def served(cluster, tmp_path):
    with running(cluster, tmp_path) as (port, speaker):
        yield port, speaker


def health(port):
    status, _, body = ask(port, "GET", "/health")
    return status, json.loads(body)


def all_run(port):
    return [one["state"] for one in health(port)[1]["workers"]] == ["running"] * 2


def at_once(bodies, port, meanwhile=lambda: None):
    """Return the answers to calls made at the same time."""
    answers = [None] * len(bodies)

    def call(at):
        answers[at] = ask(port, body=bodies[at])

    threads = [threading.Thread(target=call, args=(at,)) for at in range(len(bodies))]
    for thread in threads:
        thread.start()
    meanwhile()
    for thread in threads:
        thread.join(300)
    return answers


def kill(cluster, *seats):
    for seat in cluster.seats.all:
        seat.deaths.clear()  # those of other tests
    for seat in seats or running_seats(cluster):
        os.kill(seat.about.process, signal.SIGKILL)


def running_seats(cluster):
    return [seat for seat in cluster.seats.all if seat.server]


def metric(seat, name):
    """Return a sum of a worker's metrics. 0 if it does not answer."""
    with contextlib.suppress(HiggsError):
        told = Connections().ask(seat.server.address, "GET", "/metrics").body.decode()
        return sum(float(line.split()[-1]) for line in told.splitlines() if line.startswith(name))
    return 0


def busy(cluster):
    """Return the seats whose workers speak."""
    return [seat for seat in running_seats(cluster) if metric(seat, "higgs_tts_rows_running")]


def test_health_lists_the_workers(served, cluster):
    port, _ = served
    wait_for(lambda: all_run(port))
    status, told = health(port)
    assert status == 200 and told["status"] == "healthy"
    assert [one["device"] for one in told["workers"]] == ["CPU"] * 2
    processes = [one["process"] for one in told["workers"]]
    assert processes == [seat.about.process for seat in cluster.seats.all] and len(set(processes)) == 2


def test_a_worker_dies_and_each_caller_hears_all_of_its_sound_once(served, cluster, undisturbed):
    port, _ = served

    def kill_one():
        wait_for(lambda: len(busy(cluster)) == 2)
        time.sleep(0.3)
        kill(cluster, busy(cluster)[0])

    answers = at_once([body_of(number) for number in range(CALLERS)], port, kill_one)
    assert [answer[0] for answer in answers] == [200] * CALLERS
    assert all(same(answer[2], expected) for answer, expected in zip(answers, undisturbed, strict=True))
    wait_for(lambda: all_run(port))


def test_a_worker_that_died_while_nothing_was_spoken_is_back_for_the_next_call(cluster, undisturbed, tmp_path):
    with running(cluster, tmp_path) as (port, _):
        assert same(ask(port, body=body_of(0))[2], undisturbed[0])
    kill(cluster, cluster.seats.all[0])
    with running(cluster, tmp_path) as (port, _):
        wait_for(lambda: [one["state"] for one in health(port)[1]["workers"]] == ["starting", "running"])
        answers = at_once([body_of(number) for number in range(CALLERS)], port)
        assert all(same(answer[2], expected) for answer, expected in zip(answers, undisturbed, strict=True))
        wait_for(lambda: all_run(port))


def test_with_no_worker_left_each_caller_is_told_so_and_later_ones_are_served(
    served, cluster, undisturbed, monkeypatch
):
    port, speaker = served
    wait_for(lambda: all_run(port))
    long = {"input": "It goes on and on. " * 20, "max_new_tokens": 2000}
    with monkeypatch.context() as patched, socket.create_connection(("127.0.0.1", port), timeout=120) as raw:
        patched.setattr(Seat, "died", lambda seat, error: seat.give_up(" Ray's reason: the machine is gone."))
        data = json.dumps(body_of(2, **long)).encode()
        raw.sendall(
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        heard = raw.recv(1 << 12)
        assert b"200 OK" in heard

        def kill_all():
            wait_for(lambda: len(busy(cluster)) == 2 and speaker.speaking == 3)
            kill(cluster)

        bodies = [body_of(0, stream=False, **long), body_of(1, stream_format="sse", **long)]
        whole, events = at_once(bodies, port, kill_all)
        with contextlib.suppress(ConnectionResetError):
            while part := raw.recv(1 << 16):
                heard += part
        assert not heard.endswith(b"0\r\n\r\n"), "it breaks off, and does not end as if it were whole"
        says = r"All workers of the Ray cluster are lost\. Try again.*the machine is gone"
        assert whole[0] == 500 and re.match(says, error_of(whole)["message"])
        assert events[0] in (200, 500) and b"speech.audio.done" not in events[2] and re.search(says.encode(), events[2])
        status, told = health(port)
        assert status == 503 and told["status"] == "unhealthy"
        reason = "Ray's reason: the machine is gone."
        assert told["workers"] == [{"state": "lost", "reason": reason}] * 2
    assert same(ask(port, body=body_of(0))[2], undisturbed[0]) and speaker.broken is None
    wait_for(lambda: all_run(port))


def add_voice(port, name):
    clip = (BUILT_IN_CLIPS / "amber.flac").read_bytes()
    parts = [b'--edge\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + name + b"\r\n"]
    parts += [b'--edge\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.flac"\r\n\r\n' + clip]
    headers = ["Content-Type: multipart/form-data; boundary=edge"]
    status, _, told = ask(port, "POST", "/v1/audio/voices", b"".join(parts) + b"\r\n--edge--\r\n", headers)
    assert status == 200, told


def test_a_voice_that_is_added_is_spoken_by_all_workers(served, cluster):
    port, _ = served
    wait_for(lambda: all_run(port))
    add_voice(port, b"mine")
    calls = 'higgs_tts_calls_total{path="/v1/higgs-tts/chunk",status="200"}'
    before = {seat: metric(seat, calls) for seat in cluster.seats.all}
    answers = at_once([body_of(1, voice="mine")] * CALLERS, port)
    assert all(answer[0] == 200 and same(answer[2], answers[0][2]) for answer in answers)
    assert all(metric(seat, calls) > spoken for seat, spoken in before.items())


def test_a_voice_waits_for_a_worker(cluster, tmp_path):
    kill(cluster)
    with running(cluster, tmp_path) as (port, _):
        add_voice(port, b"mine")
        wait_for(lambda: all_run(port))


def test_a_voice_is_made_by_another_worker_if_one_dies(cluster, tmp_path):
    with running(cluster, tmp_path) as (port, _):
        assert ask(port, body=body_of(0))[0] == 200  # the workers stay in the session for a while
        wait_for(lambda: all_run(port))
        for seat in cluster.seats.all:
            os.kill(seat.about.process, signal.SIGSTOP)
        adding = threading.Thread(target=add_voice, args=(port, b"mine"))
        adding.start()
        time.sleep(0.5)
        kill(cluster)
        adding.join(120)
        assert b'"mine"' in ask(port, "GET", "/v1/audio/voices")[2]
        wait_for(lambda: all_run(port))
