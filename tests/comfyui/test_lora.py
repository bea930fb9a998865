"""LoRAs swapped in a real ComfyUI: a setting always gives the same speech, and ComfyUI knows every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .server import CHECKPOINT


@pytest.fixture(scope="module")
def with_loras(start_comfy):
    """A ComfyUI of its own with two LoRAs for its checkpoint."""
    from higgs_tts.tests.peft_files import write_adapter

    comfy = start_comfy()
    models = comfy.base / "models"
    with torch.inference_mode(False):
        for name, kind in (("anna", "plain"), ("team/slow", "dora")):
            write_adapter(models / "higgs_tts" / CHECKPOINT, models / "loras" / name, kind)
    return comfy


@pytest.fixture
def speak(with_loras, workflow):
    """speak((name, strength), ...) -> samples, with the LoRA nodes chained."""

    def run(*chosen):
        prompt = workflow("speak")
        (speaker,) = [entry for entry in prompt.values() if entry["class_type"] == "HiggsTTSSpeak"]
        for number, (name, strength) in enumerate(chosen, 40):
            given = {"model": speaker["inputs"]["model"], "name": name, "strength": strength}
            prompt[str(number)] = {"class_type": "HiggsTTSLoadLoRA", "inputs": given}
            speaker["inputs"]["model"] = [str(number), 0]
        outcome = with_loras.run(prompt)
        assert all(
            f" + {name.rpartition('/')[2]} {strength:g}" in outcome.text() for name, strength in chosen if strength
        )
        return outcome.audio()[0]

    return run


def test_each_lora_setting_sounds_the_same_in_any_order(with_loras, speak):
    described = with_loras.get("/object_info/HiggsTTSLoadLoRA")["HiggsTTSLoadLoRA"]["input"]["required"]
    assert described["name"][1]["options"] == ["anna", "team/slow"]
    settings = [(), (("anna", 1.0),), (("anna", 0.5),), (("anna", 1.0), ("elsewhere/slow", 0.5))]
    first = [speak(*chosen) for chosen in settings]
    assert len({wave.tobytes() for wave in first}) == len(settings)
    np.testing.assert_array_equal(speak(("anna", 0.0)), first[0])
    for _ in range(2):
        for chosen, wave in zip(settings, first, strict=True):
            np.testing.assert_array_equal(speak(*chosen), wave)
            state = with_loras.get("/higgs_probe")
            assert state["open"] == len(state["loaded"]), "an engine is open that ComfyUI does not know"
    with_loras.free(
        {"unload_models": True, "free_memory": True}, lambda state: state["open"] == 0 and state["loaded"] == []
    )


def test_an_unusable_lora_is_an_error_on_its_node(with_loras, workflow):
    prompt = workflow("speak")
    (speaker,) = [entry for entry in prompt.values() if entry["class_type"] == "HiggsTTSSpeak"]
    given = {"model": speaker["inputs"]["model"], "name": "nobody", "strength": 1.0}
    prompt["40"] = {"class_type": "HiggsTTSLoadLoRA", "inputs": given}
    speaker["inputs"]["model"] = ["40", 0]
    assert "there is no LoRA" in with_loras.run(prompt).error
