"""A book by Ray workers: the same bytes, whichever worker dies. Some tests run without Ray."""

import gc
import importlib.util
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import threading
import time
import types
import weakref
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, Turn
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.book.book import Chapter
from higgs_tts.engine.book.chapters import PlannedChapter, groups
from higgs_tts.engine.engines.cluster.worker import About, Orders, Unfit, Worker
from higgs_tts.engine.speech.decoder import Stage
from higgs_tts.engine.speech.speech_input import SpeechInput

ROOT = pathlib.Path(__file__).resolve().parents[2]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
PARAMS = SamplingParams(seed=3, max_frames=20, chunk_seconds=3, retries=0)
TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five six seven".split())


@pytest.fixture(scope="module")
def config(written):
    return EngineConfig(str(written["v3"]), device="cpu", context=512, runner="watched")


@pytest.fixture(scope="module")
def alone(config):
    with Engine(config) as engine:
        return engine.speak(TEXT, params=PARAMS)


class TestWorker:
    """A single worker, without Ray."""

    @pytest.fixture
    def worker(self, config):
        worker = Worker(config)
        worker.open()
        return worker

    @staticmethod
    def asked(config, params=PARAMS):
        request = Engine(config).planner.request(SpeechInput((Turn("", TEXT),), {}, params), Listener())
        stage, sequences = next(request.stages())
        return stage, tuple(enumerate(sequences))

    def test_a_worker_reports_its_fingerprint_and_device(self, worker, config):
        assert worker.open() == (Engine(config).fingerprint, "CPU", platform.node(), os.getpid())

    def test_a_worker_decodes_orders_until_told_to_end(self, worker, config, alone):
        stage, sequences = self.asked(config)
        worker.give(7, Orders(sequences))  # before it has begun
        news, said = worker.decode(7, stage), []
        for one in news:
            said += one.parts
            if any(part.is_last for part in one.parts):
                worker.give(7, Orders(is_end=True))
        first = alone.said[0]
        wav = torch.cat([part.wav for part in said])
        assert len(wav) == first.stop and torch.allclose(wav[:-240], alone.wav[: first.stop - 240], atol=1e-5)
        assert torch.equal(said[-1].codes, alone.codes[slice(*first.frames)]) and said[-1].frames == first.frames[1]

    def test_a_worker_stops_decoding_a_dropped_sequence(self, worker, config):
        stage, sequences = self.asked(config, replace(PARAMS, max_frames=300))
        worker.give(1, Orders(sequences))
        news = worker.decode(1, stage)
        assert next(news).received == 0
        while not (said := next(news).parts):
            pass
        worker.give(1, Orders(drops=(0,), is_end=True))
        assert not said[-1].is_last and not [part for one in news for part in one.parts]

    def test_what_is_dropped_is_forgotten(self, worker, config, monkeypatch):
        monkeypatch.setattr(time, "monotonic", itertools.count().__next__)  # each step is long enough to be reported
        stage, sequences = self.asked(config, replace(PARAMS, max_frames=300))
        asked = [weakref.ref(sequence) for _, sequence in sequences]
        worker.give(1, Orders(sequences))
        del sequences
        news = worker.decode(1, stage)
        while not next(news).parts:
            pass
        worker.give(1, Orders(drops=tuple(range(len(asked)))))
        while next(news).parts:
            pass
        gc.collect()
        assert not any(one() for one in asked)
        worker.give(1, Orders(is_end=True))
        assert not list(news)

    def test_a_device_without_room_is_reported(self, worker, config, before_steps):
        def fail(backend):
            raise torch.cuda.OutOfMemoryError("planted")

        before_steps(fail)
        stage, sequences = self.asked(config)
        worker.give(1, Orders(sequences))
        assert list(worker.decode(1, stage))[-1] == Unfit(f"The CPU of {platform.node()} ran out of memory")


class FakeRay(types.ModuleType):
    """Ray as seats use it: every promise is kept at once, with the next of `answers`."""

    def __init__(self, answers):
        super().__init__("ray")
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})
        self.exceptions.RayTaskError = type("RayTaskError", (self.exceptions.RayError,), {})
        self._answers, self.killed = answers, []

    def remote(self, what):
        promise = types.SimpleNamespace(options=lambda **options: promise, remote=lambda *given: object())
        actor = types.SimpleNamespace(open=promise, is_open=promise)
        hire = types.SimpleNamespace(options=lambda **options: hire, remote=lambda config: actor)
        return hire

    def wait(self, promises, timeout, num_returns=1):
        return promises, []

    def kill(self, actor):
        self.killed.append(actor)

    def get(self, promise):
        answer = next(self._answers)
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
        return module.Seats(None, count, {}), module, ray

    return make


def with_fake_ray(name, monkeypatch):
    """Return a module of the cluster, loaded anew, for this test alone."""
    full = f"higgs_tts.engine.engines.cluster.{name}"
    spec = importlib.util.spec_from_file_location(full, ROOT / "engine" / "engines" / "cluster" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, full, module)
    spec.loader.exec_module(module)
    return module


def test_a_session_closed_while_a_worker_joins_starts_no_stream(seats_of, monkeypatch):
    seats, module, _ = seats_of(About("model", "CPU", "here", 7))
    (seat,) = seats.all
    joined, ended, streams = threading.Event(), threading.Event(), []

    class Paused(module.Seat):
        """Pauses the thread that has joined until the session has told its stream to end."""

        @property
        def member(self):
            if self.joins is not None:
                joined.set()
                ended.wait(60)
            return self.joins

        @member.setter
        def member(self, member):
            self.joins = member

    seat.joins, seat.__class__ = None, Paused
    starts = types.SimpleNamespace(remote=lambda *given: streams.append(given) or iter(()))
    seat.actor.decode = types.SimpleNamespace(options=lambda **_: starts)
    seat.actor.give = types.SimpleNamespace(remote=lambda *_: ended.set())
    session = with_fake_ray("ray_session", monkeypatch).RayPoolSession(seats, Stage(1, 64), 0)
    session.submit()
    joined.wait(60)
    session.close()
    assert ended.is_set() and not streams


def test_a_worker_s_death_is_reported_with_ray_s_reason(seats_of):
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
    died += "The worker was killed: the node ran low on memory.\n"
    seats, module, ray = seats_of(About("model", "CPU", "here", 7), "The node is gone. " * 99)
    seats.gather()
    (seat,) = seats.ready
    assert seat.name == "The worker on here, process 7," and seats.fingerprint == "model"
    assert module.reason_of(ray.exceptions.RayError(died)) == (
        "The actor died unexpectedly before finishing this task. The worker was killed: the node ran low on memory."
    )
    seat.open()
    assert seats.admit(seat, 1.0) and seat.is_gone and not seats.ready
    assert seat.reason.startswith(" Ray's reason: The node is gone. ") and seat.reason.endswith("...")
    assert len(seat.reason) < 500
    assert str(seats.none_left()).startswith("All workers of the Ray cluster are lost. Try again;")


def test_a_seat_is_filled_again_but_not_for_ever(seats_of):
    here = About("model", "CPU", "here", 7)
    seats, _, ray = seats_of(*[here] * 5)
    (seat,) = seats.all
    for _ in range(3):
        seats.gather()
        assert seats.ready == [seat]
        seat.died(ray.exceptions.RayError("died"))
        assert seat.opening is not None and not seats.ready
    seats.gather()
    seat.died(ray.exceptions.RayError("died"))
    assert seat.is_gone and len(ray.killed) == 4, "a fourth time within minutes"
    seats.call()
    seats.gather()
    assert seats.ready == [seat], "a later session tries again"


def test_states_of_workers(seats_of):
    here, there = About("model", "CPU", "here", 7), About("model", "CPU", "there", 8)
    seats, *_ = seats_of(here, there, True, False, "died", there, True, count=2)
    assert seats.states() == [{"state": "starting"}] * 2
    seats.gather()
    who = [{"machine": one.machine, "process": one.process, "device": "CPU"} for one in (here, there)]
    assert seats.states() == [{"state": "running", **who[0]}, {"state": "starting", **who[1]}], "Ray restarted one"
    seats.all[0].give_up(" It is gone.")
    seats.call()
    assert seats.admit(seats.all[0], 1.0) and seats.all[0].is_gone
    assert seats.admit(seats.all[1], 1.0)
    assert seats.states() == [{"state": "lost", "reason": "Ray's reason: died"}, {"state": "running", **who[1]}]


def test_a_worker_that_never_starts_is_given_up(seats_of, monkeypatch):
    seats, _, ray = seats_of()
    (seat,) = seats.all
    monkeypatch.setattr(ray, "wait", lambda promises, timeout: ([], promises))
    assert not seats.admit(seat, 0.0)
    seat.asked -= 601
    assert seats.admit(seat, 0.0) and seat.is_gone
    with pytest.raises(HiggsError, match=r"All workers of the Ray cluster are lost.*has not started it within 600 s"):
        seats.gather()


def test_workers_of_different_models_are_refused(seats_of):
    seats, *_ = seats_of(About("model", "CPU", "here", 7), About("another", "CPU", "there", 8), count=2)
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
    (row,) = json.loads(out.read_text())["ray_book"]
    assert (row["actors"], row["killed"], row["lost"], row["same_bytes"]) == (2, 1, 0, True)
    assert row["files"] > 8 and any(
        "died; the other workers took over its part" in warning for warning in row["warnings"]
    )
