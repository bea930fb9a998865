"""Adapters of a server: each call as if it were alone with its own, in turns, with one engine open at a time."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from higgs_tts.engine import Adapter, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.engines import engine as engine_module
from higgs_tts.engine.tools.arguments import make_parser
from higgs_tts.engine.tools.engine_choice import named_loras
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests.peft_files import write_adapter

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from higgs_tts.engine.serve import speaker as speaking  # noqa: E402
from higgs_tts.tests.speech_servers import ask, error_of, running_loop, sound_of, wait_for  # noqa: E402

KINDS = {"anna": "plain", "ben": "embedding", "cleo": "whole"}  # the second has a head of its own
SHORT = {"input": "One apple.", "max_new_tokens": 3, "retries": 0, "response_format": "pcm"}
SEEDS = range(5)


@pytest.fixture(scope="module", autouse=True)
def _short_probe():
    """Nothing asks for the times of words here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "PROBE_FRAMES", 8)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    base = write_tiny(folder / "v3", "v3")
    for seed, (name, kind) in enumerate(KINDS.items()):
        write_adapter(base, folder / name, kind, seed=seed, by_hand=True)
    return EngineConfig(str(base), device="cpu", context=512)


def engines_of(config):
    folder = pathlib.Path(config.model).parent
    adapters = {name: (Adapter(str(folder / name)),) for name in KINDS}
    return {name: Engine(EngineConfig(**vars(config) | {"adapters": given})) for name, given in adapters.items()}


@pytest.fixture
def served(config, monkeypatch):
    """(port, speaker, engines by name), whose turns are short. No two engines are open at a time."""
    monkeypatch.setattr(speaking, "TURN", 0.3)
    adapted, opened = engines_of(config), Engine.open
    engines = {"": Engine(config), **adapted}

    def alone(engine):
        assert not [one for one in engines.values() if one.opened and one is not engine]
        opened(engine)

    monkeypatch.setattr(Engine, "open", alone)
    with engines[""], running_loop(engines[""], adapted=adapted) as (port, speaker, *_):
        yield port, speaker, engines
    assert not [one for one in engines.values() if one.opened or one.held_bytes]


@pytest.fixture(scope="module")
def spoken(config):
    """The samples of each call alone, by (adapter, seed)."""
    heard = {}
    for name, engine in {"": Engine(config), **engines_of(config)}.items():
        with engine, running_loop(engine) as (port, *_):
            for seed in SEEDS:
                heard[name, seed] = ask(port, body={**SHORT, "seed": seed})[2]
    assert len(set(heard.values())) == len(heard)
    return heard


def changes(port):
    told = ask(port, "GET", "/metrics")[2].decode()
    return int(told.partition("\nhiggs_tts_adapter_changes_total ")[2].partition("\n")[0])


def test_200_calls_over_three_adapters_are_each_as_if_alone(served, spoken):
    port, speaker, engines = served
    asked = [(name, seed) for name in ("", *KINDS) for seed in SEEDS] * 10

    def call(what):
        name, seed = what
        status, told, data = ask(port, body={**SHORT, "seed": seed, "model": f"embedded:{name}" if name else "higgs"})
        assert status == 200 and told["x-model"] == (f"embedded:{name}" if name else "embedded")
        return data

    with ThreadPoolExecutor(len(asked)) as callers:
        heard = [*callers.map(call, asked)]
    assert heard == [spoken[what] for what in asked]
    assert 3 <= changes(port) == speaker.changes < 60, "they wait for each other in groups"
    assert call(("", 3)) == spoken["", 3] and engines[""].opened, "to the bit, after the last of an adapter"


def test_a_group_that_goes_on_does_not_keep_others_waiting(served, spoken):
    port, speaker, _ = served
    done = threading.Event()

    def go_on():
        while not done.is_set():
            ask(port, body={**SHORT, "model": "embedded:anna"})

    callers = [threading.Thread(target=go_on) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        for name in ("ben", "", "cleo", "ben"):
            assert ask(port, body={**SHORT, "seed": 1, "model": f"x:{name}"})[2] == spoken[name, 1]
    finally:
        done.set()
        for caller in callers:
            caller.join()
    assert speaker.changes >= 4


def test_models_are_listed_and_unknown_adapters_refused(served):
    port = served[0]
    models = json.loads(ask(port, "GET", "/v1/models")[2])["data"]
    assert [one["id"] for one in models] == ["embedded", "embedded:anna", "embedded:ben", "embedded:cleo"]
    assert [one.get("parent") for one in models] == [None, *["embedded"] * 3] and models[1]["owned_by"] == "higgs-tts"
    for path, body in (("/v1/audio/speech", SHORT), ("/v1/audio/speech", {**SHORT, "stream": False})):
        answer = ask(port, path=path, body={**body, "model": "embedded:dora"})
        assert answer[0] == 404 and error_of(answer)["code"] == "model_not_found"
        assert "embedded:anna, embedded:ben" in error_of(answer)["message"]
    for name in ("tts-1", "embedded", "higgs:latest", "", None):
        assert ask(port, body={**SHORT, "model": name})[1]["x-model"] == "embedded"


def test_texts_of_a_batch_and_of_a_stream_have_their_own_adapters(served, spoken):
    port = served[0]
    items = [{"input": SHORT["input"], "model": f"embedded:{name}"} for name in (*KINDS, "dora")]
    body = {"response_format": "pcm", "seed": 2, "max_new_tokens": 3, "retries": 0, "items": items}
    results = json.loads(ask(port, path="/v1/audio/speech/batch", body=body)[2])["results"]
    assert [one["status"] for one in results] == ["success"] * 3 + ["error"]
    assert len({one["audio_data"] for one in results[:3]}) == 3

    async def talk(name):
        heard = b""
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{port}/v1/audio/speech/stream") as caller,
        ):
            fields = {"model": f"embedded:{name}", "seed": 2, "max_new_tokens": 3, "retries": 0, "stream_audio": True}
            await caller.send_json({"type": "session.config", **fields})
            await caller.send_json({"type": "input.text", "text": SHORT["input"]})
            await caller.send_json({"type": "input.done"})
            async for got in caller:
                if got.type is aiohttp.WSMsgType.BINARY:
                    heard += got.data
                elif (told := json.loads(got.data))["type"] in ("session.done", "error"):
                    return heard, told
        return heard, {}

    assert asyncio.run(talk("ben"))[0] == spoken["ben", 2]
    assert asyncio.run(talk("dora"))[1]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (HiggsError("The file is gone."), "The file is gone."),
        (OSError("gone"), "The LoRA ben cannot be opened (OSError: gone). Check its files and try again."),
        (ValueError("short"), "The LoRA ben cannot be opened (ValueError: short). Check its files and try again."),
    ],
)
def test_an_adapter_that_cannot_be_opened_fails_its_own_calls(served, spoken, monkeypatch, error, told):
    port, _, engines = served
    monkeypatch.setattr(engines["ben"], "open", lambda: (_ for _ in ()).throw(error))
    for name in ("anna", "ben", "cleo", "ben", ""):
        answer = ask(port, body={**SHORT, "seed": 4, "model": f"embedded:{name}".rstrip(":")})
        if name == "ben":
            assert answer[0] == 500 and error_of(answer)["message"] == told
        else:
            assert answer[2] == spoken[name, 4]


def test_after_one_that_cannot_be_opened_a_drop_opens_nothing_and_a_clip_the_base_engine(config, monkeypatch):
    adapted, ends, opened, engine = engines_of(config), [], [], Engine(config)

    def fail():
        opened.append("ben")
        raise HiggsError("The file is gone.")

    monkeypatch.setattr(adapted["ben"], "open", fail)
    job = speaking.SpeechJob("One apple.", ends.append, adapter="ben")

    def failed(times):
        engine.open()
        speaker = speaking.SpeakerThread(engine, adapted=adapted)
        speaker.speak(job)
        wait_for(lambda: len(ends) == times)
        return speaker

    try:
        speaker = failed(1)
        speaker.drop(job)
        speaker.close()
        assert opened == ["ben"] and not speaker.changes and not engine.opened
        speaker = failed(2)
        clip = torch.from_numpy(sound_of("One apple.", seconds=2))[None]
        assert len(speaker.encode(clip, 24_000, "One apple.").result(60).codes)
        speaker.close()
        assert opened == ["ben"] * 2 and speaker.changes == 1 and engine.opened
    finally:
        engine.close()


@pytest.mark.parametrize("where", ["decoding", "encode_voice", "planner"])
def test_an_error_that_ends_the_thread_reaches_all_who_wait(config, monkeypatch, where):
    ready, ends = threading.Event(), []

    def fail(*_):
        assert ready.wait(60)
        raise TypeError("a mistake")

    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    with Engine(config) as engine:
        monkeypatch.setattr(*((engine.planner, "request") if where == "planner" else (engine, where)), fail)
        speaker = speaking.SpeakerThread(engine)
        for _ in range(2):
            speaker.speak(speaking.SpeechJob("One apple.", ends.append))
        made = speaker.encode(torch.from_numpy(sound_of("One apple.", seconds=2))[None], 24_000, "")
        ready.set()
        with pytest.raises(TypeError, match="a mistake"):
            made.result(60)
        speaker.close()
        speaker.speak(speaking.SpeechJob("One apple.", ends.append))
        assert [str(error) for error in ends] == ["a mistake"] * 3


def test_a_call_that_waits_for_its_adapter_can_be_dropped(config):
    adapted = engines_of(config)
    ends, params = {}, SamplingParams(max_frames=30)
    with Engine(config) as engine:
        speaker = speaking.SpeakerThread(engine, adapted=adapted)
        try:
            jobs = {
                name: speaking.SpeechJob(
                    "One apple.", lambda what, name=name: ends.setdefault(name, what), params=params, adapter=name
                )
                for name in ("", "anna", "ben")
            }
            for job in jobs.values():
                speaker.speak(job)
            speaker.drop(jobs["anna"])
            deadline = time.monotonic() + 60
            while len(ends) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            speaker.close()
    assert set(ends) == {"", "ben"} and speaker.changes == 1
    assert not any(one.opened for one in adapted.values())


@pytest.mark.parametrize(
    ("given", "named", "plain"),
    [
        (["anna=a.safetensors"], {"anna": ("a.safetensors", 1.0)}, []),
        (["anna=a.safetensors:0.5"], {"anna": ("a.safetensors", 0.5)}, []),
        (["a.safetensors:0.5"], {}, ["a.safetensors:0.5"]),
        (["anna=a", "b", "ben=c:-1"], {"anna": ("a", 1.0), "ben": ("c", -1.0)}, ["b"]),
        (["anna=dir/x=y"], {"anna": ("dir/x=y", 1.0)}, []),
        (["dir/x=y"], {}, ["dir/x=y"]),
        ([r"C:\loras\a=b:0.5"], {}, [r"C:\loras\a=b:0.5"]),
        ([r"anna=C:\a.safetensors"], {"anna": (r"C:\a.safetensors", 1.0)}, []),
        (["there=1"], {}, ["there=1"]),
        ([], {}, []),
    ],
)
def test_loras_with_a_name(given, named, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there=1").mkdir()
    args = make_parser().parse_args(["serve", *(f"--lora={one}" for one in given)])
    found = named_loras(args)
    assert {name: (one.path, one.strength) for name, one in found.items()} == named and args.lora == plain


@pytest.mark.parametrize(
    ("given", "told"), [(["anna=a", "anna=b"], "two adapters named anna"), (["anna=a", "--ray"], "--ray")]
)
def test_loras_with_a_name_that_cannot_be_used(given, told):
    options = [one if one.startswith("--") else f"--lora={one}" for one in given]
    args: argparse.Namespace = make_parser().parse_args(["serve", *options])
    with pytest.raises(HiggsError, match=told):
        named_loras(args)
