"""Every way in which ComfyUI reclaims an engine's memory, and equal speech afterwards."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from .server import ROOT, interpreter, is_on_windows

_fresh = itertools.count(60)


def fresh() -> float:
    """Return a setting that changes no sound, so that the node runs again."""
    return float(next(_fresh))


@pytest.fixture
def speak(workflow):
    """speak(comfy) -> samples."""

    def run(comfy, **changes):
        changes.setdefault("HiggsTTSSpeak", {})["chunk_seconds"] = fresh()
        return comfy.run(workflow("speak", **changes)).audio()[0]

    return run


def is_closed(state) -> bool:
    return state["open"] == 0 and state["loaded"] == []


def is_whole(state, engines=1) -> bool:
    return state["open"] == len(state["loaded"]) == engines and state["loaded"] == state["whole"]


WITHOUT_US = {
    "1": {"class_type": "EmptyAudio", "inputs": {"duration": 1.0, "sample_rate": 44100, "channels": 2}},
    "2": {"class_type": "PreviewAudio", "inputs": {"audio": ["1", 0]}},
}


def without_us() -> dict:
    """A prompt of ComfyUI's own nodes, run again each time."""
    prompt = json.loads(json.dumps(WITHOUT_US))
    prompt["1"]["inputs"]["duration"] = fresh() / 60
    return prompt


@pytest.mark.parametrize("body", [{"unload_models": True}, {"unload_models": True, "free_memory": True}])
def test_the_unload_buttons_close_the_engine(comfy, speak, body):
    first = speak(comfy)
    assert is_whole(comfy.get("/higgs_probe"))
    comfy.free(body, is_closed)
    np.testing.assert_array_equal(speak(comfy), first)


@pytest.fixture
def press(workflow):
    """press(comfy, wanted) -> the probe's state before and after another model needed the memory."""

    def run(comfy, wanted):
        prompt = workflow("speak", HiggsTTSSpeak={"chunk_seconds": fresh()})
        prompt["30"] = {"class_type": "HiggsProbePressure", "inputs": {"audio": ["2", 0], "wanted": wanted}}
        return json.loads(comfy.run(prompt).text("HiggsProbePressure"))

    return run


def test_mild_pressure_frees_the_cache_and_keeps_the_weights(comfy, speak, press):
    first = speak(comfy)
    before, after = press(comfy, "a little")
    assert is_whole(before) and before["missing"] == [0]
    assert after["open"] == 1 and 0 < after["loaded"][0] < after["whole"][0]
    assert after["missing"] == [after["whole"][0] - after["loaded"][0]], "room is made for what is gone, no more"
    np.testing.assert_array_equal(speak(comfy), first)
    assert is_whole(comfy.get("/higgs_probe"))


def test_strong_pressure_closes_the_engine(comfy, speak, press):
    first = speak(comfy)
    before, after = press(comfy, "all")
    assert is_whole(before) and is_closed(after)
    np.testing.assert_array_equal(speak(comfy), first)


def test_a_trimmed_engine_can_be_unloaded(comfy, speak, press):
    first = speak(comfy)
    press(comfy, "a little")
    comfy.free({"unload_models": True}, is_closed)
    np.testing.assert_array_equal(speak(comfy), first)


def test_an_engine_closes_when_its_node_is_deleted(comfy, speak):
    first = speak(comfy)
    assert not comfy.run(without_us()).error
    comfy.until(is_closed)
    np.testing.assert_array_equal(speak(comfy), first)


def test_a_clone_speaks_with_the_same_engine(comfy, workflow, speak):
    first = speak(comfy)
    prompt = workflow("speak", HiggsTTSSpeak={"chunk_seconds": fresh(), "model": ["40", 0]})
    prompt["40"] = {"class_type": "HiggsProbeClone", "inputs": {"model": ["1", 0]}}
    np.testing.assert_array_equal(comfy.run(prompt).audio()[0], first)
    assert is_whole(comfy.get("/higgs_probe"))
    # The clone goes, the loader's patcher stays and is what ComfyUI must ask to leave.
    voice = workflow("clone_voice", HiggsTTSVoice={"transcript": str(fresh())})
    voice["5"] = {"class_type": "PreviewAny", "inputs": {"source": ["3", 1]}}
    voice = {node: voice[node] for node in ("1", "2", "3", "5")}
    assert not comfy.run(voice).error
    assert is_whole(comfy.get("/higgs_probe"))
    comfy.free({"unload_models": True}, is_closed)
    np.testing.assert_array_equal(speak(comfy), first)


def two_loaders(prompt: dict, **settings) -> dict:
    """The speak workflow twice in one prompt, the second with a loader of its own."""
    second = {f"1{node}": json.loads(json.dumps(prompt[node])) for node in ("1", "2", "3")}
    second["11"]["inputs"].update(settings)
    second["12"]["inputs"].update(model=["11", 0], chunk_seconds=fresh())
    second["13"]["inputs"]["audio"] = ["12", 0]
    return {**prompt, **second}


def test_equal_loaders_share_one_engine(comfy, workflow, speak):
    prompt = workflow("speak", HiggsTTSSpeak={"chunk_seconds": fresh()})
    assert not comfy.run(two_loaders(prompt, model="elsewhere/higgs-tts-3-4b")).error
    assert is_whole(comfy.get("/higgs_probe"))
    speak(comfy)
    assert is_whole(comfy.until(lambda state: state["open"] == 1)), "one loader is left"
    assert not comfy.run(without_us()).error
    comfy.until(is_closed)


def test_different_loaders_coexist(comfy, workflow, speak):
    prompt = workflow("speak", HiggsTTSSpeak={"chunk_seconds": fresh()})
    assert not comfy.run(two_loaders(prompt, context=2048)).error
    assert is_whole(comfy.get("/higgs_probe"), engines=2)
    speak(comfy)
    comfy.until(is_whole)
    comfy.free({"unload_models": True}, is_closed)


def test_a_changed_loader_leaves_one_engine_open(comfy, speak):
    first = speak(comfy)
    np.testing.assert_array_equal(speak(comfy, HiggsTTSLoadModel={"context": 2048}), first)
    comfy.until(is_whole)
    np.testing.assert_array_equal(speak(comfy), first)


def test_a_checkpoint_replaced_on_disk_is_reloaded(comfy, speak, tmp_path):
    from higgs_tts.engine.tools.tiny import write_tiny

    folder = comfy.base / "models" / "higgs_tts" / "replaced"
    write_tiny(folder, "v3", seed=1)
    one = speak(comfy, HiggsTTSLoadModel={"model": "replaced"})
    for file in write_tiny(tmp_path / "new", "v3", seed=2).iterdir():
        os.replace(file, folder / file.name)  # as downloads do: the old file may be mapped
    assert not np.array_equal(speak(comfy, HiggsTTSLoadModel={"model": "replaced"}), one)


@pytest.mark.parametrize("flag", ["--cache-none", "--disable-smart-memory"])
def test_the_engine_closes_after_each_prompt(make_comfy, comfy, speak, flag):
    expected = speak(comfy)
    other = make_comfy(flag)
    for _ in range(2):
        np.testing.assert_array_equal(speak(other), expected)
        other.until(is_closed)


def test_ctrl_c_ends_the_server_as_without_the_pack(start_comfy, workflow):
    if is_on_windows():
        pytest.skip("Windows has no SIGINT to send to another process")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background ignore it, as would ComfyUI
    untouched, rested, busy = start_comfy(), start_comfy(), start_comfy()
    sent = []

    def interrupt(message):
        if message["type"] == "progress" and message["data"]["value"] > 5 and not sent:
            sent.append(busy.process.send_signal(signal.SIGINT))

    assert not rested.run(workflow("speak")).error
    with pytest.raises(ConnectionError):  # it ends with the server
        long = {"text": "One more sentence. " * 100, "max_frames": 3000}  # outlasts the signal on a busy machine
        busy.run(workflow("speak", HiggsTTSSpeak=long), interrupt)
    for comfy in (untouched, rested):
        comfy.process.send_signal(signal.SIGINT)
    assert busy.process.wait(60) == rested.process.wait(60) == untouched.process.wait(60)
    for comfy in (rested, busy):
        told = comfy.log.read_text(errors="replace").split("got prompt")[1]
        assert "Stopped server" in told and "Traceback" not in told and "higgs_tts" not in told, told[-4000:]


@pytest.mark.usefixtures("start_comfy")  # skips without a ComfyUI
def test_a_model_that_is_garbage_stays_until_all_are_unloaded():
    """ComfyUI unloads models by their places in a list, which a collected model leaves: its worker ended."""
    script = [interpreter(), str(Path(__file__).with_name("unload_beside_garbage.py")), str(ROOT)]
    done = subprocess.run(script, cwd=os.environ["COMFYUI_PATH"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["unloaded"], done.stderr[-2000:]
