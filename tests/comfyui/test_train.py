"""Higgs Train Voice in a real ComfyUI: it is stopped, continues, and its LoRA speaks."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def comfy(start_comfy):
    """A ComfyUI with three copies of the built-in voices' clips in its input folder: 2.7 minutes."""
    from higgs_tts.engine import BUILT_IN_CLIPS

    comfy = start_comfy()
    folder = comfy.base / "input" / "anna"
    folder.mkdir(parents=True)
    for path in BUILT_IN_CLIPS.iterdir():
        for copy in range(3) if path.suffix in (".flac", ".txt") else ():
            shutil.copy(path, folder / f"{path.stem} {copy}{path.suffix}")
    return comfy


def graph():
    train = {"model": ["1", 0], "recordings": "anna", "name": "anna", "steps": 2, "rank": 2}
    return {
        "1": {"class_type": "HiggsTTSLoadModel", "inputs": {"model": "embedded (small, English)"}},
        "2": {"class_type": "HiggsTTSTrainVoice", "inputs": train},
        "3": {"class_type": "HiggsTTSSpeak", "inputs": {"model": ["2", 0], "text": "Good morning."}},
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["3", 1]}},
    }


def stopping(comfy):
    """Return an on_event that stops the run in its second step."""
    stopped = []

    def on_event(message):
        if not stopped and message["type"] == "progress" and message["data"]["value"]:
            stopped.append(comfy.post("/interrupt", {}))

    return on_event


def test_a_training_is_stopped_and_continued_and_its_lora_speaks(comfy):
    """A run that is stopped before its first trial keeps the codes of its clips."""
    assert comfy.run(graph(), stopping(comfy)).end == "interrupted"
    loras = comfy.base / "models" / "loras"
    assert (loras / "anna.training" / "codes.safetensors").is_file() and not (loras / "anna.safetensors").exists()
    outcome = comfy.run(graph())
    assert " + anna " in outcome.text(), outcome.error
    assert {path.name for path in loras.iterdir()} >= {"anna.safetensors", "anna.json", "anna.md", "anna.training"}
    comfy.free({"unload_models": True, "free_memory": True}, lambda state: state["open"] == 0 and state["loaded"] == [])
