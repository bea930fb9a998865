"""A book by Ray workers: the same bytes, whichever worker dies. Some tests run without Ray."""

import gc
import importlib.util
import json
import os
import pathlib
import pickle
import platform
import subprocess
import sys
import types

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, ServerConfig, Turn
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.book.book import Chapter
from higgs_tts.engine.book.chapters import PlannedChapter, groups
from higgs_tts.engine.engines.remote.address import Address
from higgs_tts.engine.engines.remote.connections import Broken, Connections, TimedOut
from higgs_tts.engine.engines.remote.errors import Failing
from higgs_tts.engine.engines.remote.server import Kind, Server
from higgs_tts.engine.engines.remote.server_pool import ServerPool, ServerSource
from higgs_tts.engine.engines.remote.wire import CHUNK, VOICE, Wire
from higgs_tts.engine.serve.cluster.worker import About, Worker
from higgs_tts.engine.serve.speaker import SpeakerThread
from higgs_tts.engine.speech.drive import speak
from higgs_tts.engine.speech.speech_input import SpeechInput

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY = "the key of the run"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
PARAMS = SamplingParams(seed=3, max_frames=20, chunk_seconds=3, retries=0)
TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five six seven".split())


@pytest.fixture(scope="module")
def config(written):
    return EngineConfig(str(written["v3"]), device="cpu", context=512)


@pytest.fixture(scope="module")
def alone(config):
    with Engine(config) as engine:
        return engine.speak(TEXT, params=PARAMS)


def about(model, machine, process):
    return About("127.0.0.1", 9, "CPU", machine, process, Wire(512, 8, "codec", model, "CPU"))


class TestWorker:
    """A single worker, without Ray."""

    @pytest.fixture(autouse=True)
    def _ended(self, monkeypatch):
        """End what otherwise ends with a worker's process: its speaker, and what it left out of collections."""
        speakers = []

        def begin(*args, **given):
            speakers.append(SpeakerThread(*args, **given))
            return speakers[-1]

        monkeypatch.setattr("higgs_tts.engine.serve.serve.SpeakerThread", begin)
        yield
        for speaker in speakers:
            speaker.close()
        gc.unfreeze()

    def test_a_worker_serves_its_engine_to_whoever_has_the_key_of_the_run(self, config, alone):
        pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
        worker = Worker(config, KEY, "127.0.0.1")
        assert not worker.is_open()
        told = worker.open()
        assert worker.open() is told and worker.is_open(), "once"
        assert (told.kind, told.machine, told.process) == ("CPU", platform.node(), os.getpid())
        assert told.wire.fingerprint == Engine(config).fingerprint
        addresses = [Address(told.host, told.port, False, "", "HIGGS_TTS_NONE", key) for key in (KEY, "another", "")]
        assert KEY not in repr(addresses)
        paths = (
            ("GET", "/v1/models"),
            ("POST", CHUNK),
            ("POST", VOICE),
            ("POST", "/v1/audio/speech"),
            ("GET", "/metrics"),
        )
        for method, path in paths:
            statuses = [Connections().ask(address, method, path, b"{}" if method == "POST" else None).status
                        for address in addresses]  # fmt: skip
            assert statuses[0] != 401 and statuses[1:] == [401, 401], path
        server = Server(addresses[0], Kind.OURS, wire=told.wire)
        pool = ServerPool(ServerSource([server]), ServerConfig(""), None)
        what = SpeechInput((Turn("", TEXT),), {}, PARAMS)
        with torch.inference_mode():
            speech = speak(Engine(config).planner.request(what, Listener()), pool)
        assert torch.equal(speech.codes, alone.codes) and torch.equal(speech.wav, alone.wav)


class FakeRay(types.ModuleType):
    """Ray as seats use it: every promise is kept at once, with the next of `answers`."""

    def __init__(self, answers):
        super().__init__("ray")
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})
        self.exceptions.RayTaskError = type("RayTaskError", (self.exceptions.RayError,), {})
        self._answers, self.killed = answers, []

    def remote(self, what):
        raise NotImplementedError

    def hire(self):
        """Place an actor."""
        promise = types.SimpleNamespace(remote=lambda *given: object())
        return types.SimpleNamespace(open=promise, is_open=promise)

    def wait(self, promises, timeout, num_returns=1):
        return promises, []

    def kill(self, actor):
        self.killed.append(actor)

    def get(self, promise):
        answer = next(self._answers)
        if isinstance(answer, Exception):  # that a task raised
            error = self.exceptions.RayTaskError(str(answer))
            error.cause = answer
            raise error
        if isinstance(answer, str):
            raise self.exceptions.RayError(answer)
        return answer


@pytest.fixture
def seats_of(monkeypatch):
    """seats_of(*answers) -> seats of workers whose promises have these answers."""

    def make(*answers, count=1):
        ray = FakeRay(iter(answers))
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
        module = with_fake_ray("seats", monkeypatch)
        return module.Seats(ray.hire, count, "key"), module, ray

    return make


def with_fake_ray(name, monkeypatch):
    """Return a module of the cluster, loaded anew, for this test alone."""
    full = f"higgs_tts.engine.serve.cluster.{name}"
    spec = importlib.util.spec_from_file_location(full, ROOT / "engine" / "serve" / "cluster" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, full, module)
    spec.loader.exec_module(module)
    return module


def test_a_worker_s_death_is_reported_with_ray_s_reason(seats_of):
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
    died += "The worker was killed: the node ran low on memory.\n"
    seats, module, ray = seats_of(about("model", "here", 7), "The node is gone. " * 99, about("model", "there", 8))
    seats.gather()
    (seat,), (server,) = seats.all, seats.servers
    assert seat.name == "The worker on here, process 7," and seats.fingerprint == "model"
    assert module.reason_of(ray.exceptions.RayError(died)) == (
        "The actor died unexpectedly before finishing this task. The worker was killed: the node ran low on memory."
    )
    assert seats.lose(server, Broken("closed the connection.")) == (True, "") and seats.is_waiting
    assert seats.lose(server, Broken("closed the connection.")) == (False, ""), "by another call"
    (change,) = seats.changes()
    assert change.came is None and change.replaces is None and len(change.note) < 500
    assert change.note.startswith("The worker on here, process 7, died; the other workers took over its part. Ray's r")
    (change,) = seats.changes()
    assert change.replaces is server and seats.servers == [change.came] and not change.note and not seats.is_waiting
    assert str(seats.none_left(())).startswith("All workers of the Ray cluster are lost. Try again;")


def test_a_worker_that_cannot_be_opened_leaves_the_others_at_work(seats_of):
    here, there = about("model", "here", 7), about("model", "there", 8)
    seats, _, ray = seats_of(here, there, OSError("No such file."), about("model", "there", 9), count=2)
    seats.gather()
    seats.lose(seats.servers[1], Broken("closed the connection."))
    (change,) = seats.changes()
    assert change.note.endswith("process 8, died; the other workers took over its part. Ray's reason: No such file.")
    (change,) = seats.changes()
    assert seats.servers[1] is change.came and len(ray.killed) == 1


def test_a_worker_s_own_error_is_raised_at_the_start_and_later_the_reason_for_its_loss(seats_of):
    here, error = about("model", "here", 7), pickle.loads(pickle.dumps(HiggsError("The file is damaged.")))
    seats, *_ = seats_of(error)
    with pytest.raises(HiggsError, match=r"^The file is damaged\.$"):
        seats.gather()
    seats, *_ = seats_of(here, error)
    seats.gather()
    seats.lose(seats.servers[0], Broken("closed the connection."))
    seats.begin()
    assert not seats.servers and "The file is damaged." in str(seats.none_left(()))


def test_a_worker_that_only_went_silent_goes_on(seats_of):
    here = about("model", "here", 7)
    seats, _, ray = seats_of(here, here)
    seats.gather()
    (server,) = seats.servers
    seats.lose(server, TimedOut("did not answer."))
    (change,) = seats.changes()
    assert change.replaces is server and change.came is not server and not change.note and not ray.killed


def test_a_worker_that_cannot_decode_is_not_replaced(seats_of):
    seats, _, ray = seats_of(about("model", "here", 7))
    seats.gather()
    returns, note = seats.lose(seats.servers[0], Failing("failed: has no room for two chunks at a time."))
    assert not returns and "has no room" in note and seats.all[0].is_gone and len(ray.killed) == 1


def test_a_seat_is_filled_again_but_not_for_ever(seats_of):
    here = about("model", "here", 7)
    seats, _, ray = seats_of(*[here, "died"] * 4, here)
    (seat,) = seats.all
    for number in range(4):
        seats.gather()
        assert len(seats.servers) == 1
        seats.lose(seats.servers[0], Broken("closed the connection."))
        assert "died" in seats.changes()[0].note
        assert seat.is_gone is (number == 3)
    assert len(ray.killed) == 4, "a fourth time within minutes"
    seats.begin()
    seats.gather()
    assert len(seats.servers) == 1, "a later session tries again"


def test_states_of_workers(seats_of):
    here, there = about("model", "here", 7), about("model", "there", 8)
    seats, *_ = seats_of(here, there, True, "died", "died", True, about("model", "there", 9), True, count=2)
    seats.gather()
    who = [{"machine": one.machine, "process": one.process, "device": "CPU"} for one in (here, there)]
    reason = {"reason": "Ray's reason: died"}
    assert seats.states() == [{"state": "running", **who[0]}, {"state": "starting", **reason}], "placed again"
    assert seats.states()[1] == {"state": "running", **who[1], "process": 9}
    seats.all[0].give_up(" It is gone.")
    assert seats.states()[0] == {"state": "lost", "reason": "It is gone."}


def test_a_worker_that_never_starts_is_given_up(seats_of, monkeypatch):
    seats, _, ray = seats_of()
    (seat,) = seats.all
    monkeypatch.setattr(ray, "wait", lambda promises, timeout: ([], promises))
    assert seats.admit(seat, 0.0) is None
    seat.requested -= 601
    assert seats.admit(seat, 0.0) == "" and seat.is_gone
    with pytest.raises(HiggsError, match=r"All workers of the Ray cluster are lost.*has not started it within 600 s"):
        seats.gather()


def test_workers_of_different_models_are_refused(seats_of):
    seats, *_ = seats_of(about("model", "here", 7), about("another", "there", 8), count=2)
    with pytest.raises(HiggsError, match=r"The model on there differs from the other machines.*set --dtype"):
        seats.gather()


def test_more_devices_speak_more_sequences_together():
    turns = tuple(Turn("", "This is said again and again, and again. " * 20) for _ in range(400))
    chapter = PlannedChapter(1, Chapter("One", turns), "01 One", "")
    sizes = [len(next(groups([chapter], devices))) for devices in (1, 2, 8, 100)]
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=1) and sizes[3] == sizes[2] == pytest.approx(8 * sizes[0], abs=8)


def narrate(*given):
    return main(["narrate", str(ROOT / "README.md"), "--out", "nowhere", *given])


def test_missing_ray_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert narrate("--ray") == narrate("--ray-actors", "2") == 2
    assert capsys.readouterr().err.count("Install ray in the Python that runs this pack.") == 2
    pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
    assert main(["serve", "--ray"]) == 2 and "Install ray in the Python" in capsys.readouterr().err


@needs_ray
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--ray", "ray://here:10001"), "Run the command on a machine of the cluster"),
        (("--ray", "127.0.0.1:1"), "There is no Ray cluster at 127.0.0.1:1"),
        (("--ray", "here"), "There is no Ray cluster at here"),
        (("--ray", "--device", "cuda:1"), "The device is cuda:1, but Ray picks"),
    ],
)
def test_a_bad_address_is_refused(given, says, capsys):
    assert narrate(*given) == 2 and says in capsys.readouterr().err


@needs_ray
def test_a_book_is_the_same_to_the_byte_after_a_worker_dies(tmp_path):
    out = tmp_path / "serve.json"
    command = [sys.executable, "benchmarks/ray_book.py", "--actors", "2", "--minutes", "0.5", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text(encoding="utf-8"))["ray_book"]
    assert (row["actors"], row["killed"], row["lost"], row["same_bytes"]) == (2, 1, 0, True)
    assert row["files"] > 8 and any(
        "died; the other workers took over its part" in warning for warning in row["warnings"]
    )
