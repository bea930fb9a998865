"""A book by workers of Ray: the same to the byte, whoever dies. What needs no Ray runs without it."""

import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import types
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, SamplingParams, Turn
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.book.book import Chapter
from higgs_tts.engine.book.chapters import PlannedChapter, groups
from higgs_tts.engine.cluster.shift import Shift
from higgs_tts.engine.cluster.worker import About, Lost, UnderWay, Unfit, Worker
from higgs_tts.engine.crew import Stage
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.engines import Run
from higgs_tts.engine.relay import Relay
from higgs_tts.engine.request import Listener

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def same(one, other):
    return torch.equal(one.codes, other.codes) and torch.allclose(one.wav, other.wav, atol=1e-5)


class Desk:
    """A worker in this process, as a team has it. end(told, number): what is told instead of its messages."""

    def __init__(self, config, number, end):
        self.worker, self._end, self._count = Worker(config), end, 0
        self.about, self.opening = self.worker.open(), None
        self.number, self.part, self.sending, self.frames = number, {}, None, 0

    @property
    def is_idle(self):
        return self.about is not None and self.sending is None

    def take(self, part):
        self.part, self.sending = dict(enumerate(part.jobs)), self.worker.decode(part)

    def leave(self):
        given_back, self.part, self.sending = list(self.part.values()), {}, None
        return given_back

    def tell(self):
        self._count += 1
        if told := self._end(self.number, self._count):
            self.about = None
            return told
        told = next(self.sending, None)
        self.sending = self.sending if told else None
        return told


class Workers:
    """A team without Ray; who has ended comes no more."""

    def __init__(self, config, count, end=lambda number, count: None):
        self.members = [Desk(config, number, end) for number in range(count)]
        self.dismissed = []

    @property
    def ready(self):
        return [member for member in self.members if member.about]

    def look(self):
        told = [(member, member.tell()) for member in self.members if member.sending]
        return [(member, one) for member, one in told if one is not None]

    def dismiss(self, member, why):
        self.dismissed.append(why)


class Speaking(Run):
    def __init__(self, team, relay):
        super().__init__(relay, None)
        self.team, self.ends = team, {}

    def decode(self, request, stage):
        shift = Shift(self.team, stage)
        self.follow(request, shift)
        self.warnings += shift.warnings
        self.ends |= shift.ends


def speak(config, team, params=PARAMS):
    """(what is said, the run)"""
    run = Speaking(team, relay := Relay())
    with Engine(config).request(relay, (Turn("", TEXT),), {}, params, None, Listener(run.tick)) as request:
        return run.speak(request), run


def test_parts_of_several_workers_are_what_one_says(config, alone):
    speech, run = speak(config, Workers(config, 2))
    assert same(speech, alone) and not run.warnings and len(run.ends) == 2
    assert all(kind == "CPU" and "chunks at a time" in end.how for kind, end in run.ends.values())


def test_what_came_out_badly_is_spoken_again(config):
    params = replace(PARAMS, max_frames=90, retries=1)
    with Engine(config) as engine:
        expected = engine.speak(TEXT, params=params)
    speech, _ = speak(config, Workers(config, 2), params)
    assert expected.spoken_again and speech.retaken == expected.retaken and same(speech, expected)


@pytest.mark.parametrize("told", [Lost("It died."), Unfit("It has no room.")])
@pytest.mark.parametrize("who", [0, 1])
def test_what_a_worker_has_not_sent_goes_to_the_others(config, alone, who, told):
    team = Workers(config, 2, lambda number, count: told if (number, count) == (who, 5) else None)
    speech, _ = speak(config, team)
    assert same(speech, alone) and told.why in speech.warnings
    assert team.dismissed == ([told.why] if isinstance(told, Unfit) else [])


class TestWorker:
    """By itself, without Ray."""

    def test_it_tells_what_it_is(self, config):
        about = Worker(config).open()
        assert about == (Engine(config).fingerprint, "CPU", platform.node(), os.getpid())

    def test_a_device_without_room_is_told_of(self, config, monkeypatch):
        def fail(runner):
            raise torch.cuda.OutOfMemoryError("planted")

        monkeypatch.setattr(ModelRunner, "step", fail)
        team = Workers(config, 1)
        speech = Engine(config).request(Relay(), (Turn("", TEXT),), {}, PARAMS, None, Listener(lambda *now: None))
        told = list(team.members[0].worker.decode(Stage(next(speech.stages()), 200, True, 0)))
        assert [one for one in told if not isinstance(one, UnderWay)] == [
            Unfit(f"The CPU of {platform.node()} ran out of memory")
        ]


class FakeRay(types.ModuleType):
    """Ray as a team uses it: every promise is kept at once, with what `answers` has for it."""

    def __init__(self, answers):
        super().__init__("ray")
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})
        self.exceptions.RayTaskError = type("RayTaskError", (self.exceptions.RayError,), {})
        self._answers = answers

    def remote(self, what):
        promise = types.SimpleNamespace(options=lambda **options: promise, remote=lambda *given: object())
        actor = types.SimpleNamespace(open=promise, decode=promise)
        hire = types.SimpleNamespace(options=lambda **options: hire, remote=lambda config: actor)
        return hire

    def wait(self, promises, timeout):
        return promises, []

    def get(self, promises):
        answer = next(self._answers)
        if isinstance(answer, str):
            raise self.exceptions.RayError(answer)
        return [answer]


def test_a_worker_s_death_is_told_with_ray_s_reason(monkeypatch):
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\n"
    died += "The worker was killed: the node ran low on memory.\n"
    ray = FakeRay(iter([About("model", "CPU", "here", 7), died, "The node is gone. " * 99]))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
    path = ROOT / "engine" / "cluster" / "team.py"
    spec = importlib.util.spec_from_file_location("higgs_tts.engine.cluster.team_of_fakes", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    team = module.Team(None, 1, {})
    assert team.look() == [] and len(team.ready) == 1
    team.members[0].sending = iter([object()])
    ((_, first),) = team.look()
    assert first.why == (
        "The worker on here, process 7, died; others spoke its part. Ray's reason: The actor died unexpectedly before "
        "finishing this task. The worker was killed: the node ran low on memory."
    )
    team.members[0].sending = None
    ((_, second),) = team.look()
    assert second.why.startswith("A worker could not be started again. Ray's reason: The node is gone. ")
    assert second.why.endswith("...") and len(second.why) < 500
    with pytest.raises(HiggsError, match=r"All workers .* are lost\. .* Ray's reason: The node is gone\."):
        team.look()


def test_more_is_spoken_together_where_there_are_more_devices():
    turns = tuple(Turn("", "This is said again and again, and again. " * 20) for _ in range(400))
    chapter = PlannedChapter(1, Chapter("One", turns), "01 One", "")
    sizes = [len(next(groups([chapter], devices))) for devices in (1, 2, 8, 100)]
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=1) and sizes[3] == sizes[2] == pytest.approx(8 * sizes[0], abs=8)


def narrate(*given):
    return main(["narrate", str(ROOT / "README.md"), "--out", "nowhere", *given])


def test_without_ray_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert narrate("--ray") == narrate("--ray-actors", "2") == 2
    assert capsys.readouterr().err.count("Install ray into the Python that runs this.") == 2


@needs_ray
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--ray", "ray://here:10001"), "Run this on a machine of the cluster"),
        (("--ray", "127.0.0.1:1"), "There is no Ray cluster at 127.0.0.1:1"),
        (("--ray", "here"), "There is no Ray cluster at here"),
        (("--ray", "--device", "cuda:1"), "The device is cuda:1, but Ray chooses"),
    ],
)
def test_an_address_that_is_none(given, says, capsys):
    assert narrate(*given) == 2 and says in capsys.readouterr().err


@needs_ray
def test_a_book_is_the_same_to_the_byte_though_a_worker_is_killed(tmp_path):
    out = tmp_path / "serve.json"
    command = [sys.executable, "benchmarks/ray_book.py", "--actors", "2", "--minutes", "0.5", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["ray"]
    assert (row["actors"], row["killed"], row["lost"], row["same_bytes"]) == (2, 1, 0, True)
    assert row["files"] > 8 and any("died; others spoke its part" in warning for warning in row["warnings"])
