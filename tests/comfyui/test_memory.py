"""Every way in which ComfyUI takes an engine's memory back, and that it speaks the same afterwards."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest

_fresh = itertools.count(60)


@pytest.fixture
def speak(workflow):
    """speak(comfy) -> samples. Runs the node anew each time: a setting that changes no sound changes."""

    def run(comfy, **changes):
        changes.setdefault("HiggsTTSSpeak", {})["chunk_seconds"] = float(next(_fresh))
        return comfy.run(workflow("speak", **changes)).audio()[0]

    return run


CLOSED = {"open": 0, "loaded": []}


@pytest.mark.parametrize("body", [{"unload_models": True}, {"unload_models": True, "free_memory": True}])
def test_unload_buttons(comfy, speak, body):
    first = speak(comfy)
    state = comfy.get("/higgs_probe")
    assert state["open"] == 1 and state["loaded"][0] > 0
    comfy.post("/free", body)
    comfy.until(lambda state: state == CLOSED)
    np.testing.assert_array_equal(speak(comfy), first)


def test_pressure_of_another_model(comfy, workflow, speak):
    first = speak(comfy)
    prompt = workflow("speak", HiggsTTSSpeak={"chunk_seconds": float(next(_fresh))})
    prompt["30"] = {"class_type": "HiggsProbePressure", "inputs": {"audio": ["2", 0]}}
    seen = json.loads(comfy.run(prompt).text("HiggsProbePressure"))
    assert seen == {"before": 1, "after": 0}
    np.testing.assert_array_equal(speak(comfy), first)


def test_a_changed_loader_leaves_one_engine_open(comfy, speak):
    first = speak(comfy)
    np.testing.assert_array_equal(speak(comfy, HiggsTTSLoadModel={"context": 2048}), first)
    state = comfy.until(lambda state: state["open"] == 1)
    assert len(state["loaded"]) == 1
    np.testing.assert_array_equal(speak(comfy), first)


def test_a_checkpoint_replaced_on_disk_is_loaded_anew(comfy, speak, tmp_path):
    from higgs_tts.engine.tiny import write_tiny

    folder = comfy.base / "models" / "higgs_tts" / "replaced"
    write_tiny(folder, "v3", seed=1)
    one = speak(comfy, HiggsTTSLoadModel={"model": "replaced"})
    for file in write_tiny(tmp_path / "new", "v3", seed=2).iterdir():
        os.replace(file, folder / file.name)  # as downloads do: the old file may be mapped
    assert not np.array_equal(speak(comfy, HiggsTTSLoadModel={"model": "replaced"}), one)


@pytest.mark.parametrize("flag", ["--cache-none", "--disable-smart-memory"])
def test_nothing_stays_open_after_a_prompt(make_comfy, comfy, speak, flag):
    expected = speak(comfy)
    other = make_comfy(flag)
    for _ in range(2):
        np.testing.assert_array_equal(speak(other), expected)
        other.until(lambda state: state == CLOSED)
