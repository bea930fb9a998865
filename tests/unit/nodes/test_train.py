"""Higgs Train Voice: which recordings and names it takes, and what it passes on."""

from __future__ import annotations

import shutil
import types

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED_NAME, Adapter, HiggsError, TrainParams, TrainProgress, TrainReport
from higgs_tts.engine.finetune.audition import Trial
from higgs_tts.tests.peft_files import write_adapter


@pytest.fixture
def module(load_module, comfy, tmp_path):
    comfy["folder_paths"].folder_names_and_paths["loras"] = ([str(tmp_path / "models" / "loras")], {".safetensors"})
    return load_module("train")


@pytest.fixture
def clips(module, tmp_path):
    """Clips in ComfyUI's input folder, as "anna"."""
    folder = module.folders.input_folder() / "anna"
    folder.mkdir(parents=True)
    shutil.copy(BUILT_IN_CLIPS / "amber.flac", folder)
    return folder


@pytest.fixture
def model(load_module, module):
    return load_module("load").HiggsTTSLoadModel.execute(EMBEDDED_NAME).args[0]


@pytest.fixture
def calls(module, monkeypatch, clips):
    """Calls of the training, which is stood for."""
    made = []

    def train(config, place, out, params, whisper, on_progress):
        made.append((place, out, params, whisper))
        on_progress(TrainProgress("Learning", 1, 4, 5.0))
        out.parent.mkdir(parents=True, exist_ok=True)
        with torch.inference_mode(False):
            write_adapter(module.EMBEDDED, out.parent / "made", "plain", by_hand=True)
        shutil.copy(out.parent / "made" / "adapter_model.safetensors", out)
        shutil.copy(out.parent / "made" / "adapter_config.json", out.with_suffix(".json"))
        speech = types.SimpleNamespace(wav=torch.zeros(48000))
        trial = Trial(0.65, speech, words=9, wrong=(0, 3))
        entry = {"step": 2, "loss": 4.5, "ends": 1.5, "held_out": 5.0, "held_out_ends": 2.0, "trials": [trial.entry()]}
        told = "5.0 minutes of speech in 60 clips", {"bad.wav": "It is silent."}, 2
        untouched = Trial(0.0, speech, words=9).entry()
        return TrainReport(out, *told, untouched, [entry], 12.0, trial, ["Without a clip, 3 of 9 words are wrong."])

    module.EMBEDDED = __import__("higgs_tts.engine", fromlist=["EMBEDDED"]).EMBEDDED
    monkeypatch.setattr(module, "train", train)
    return made


def test_it_trains_and_adds_the_lora_to_the_model(module, model, calls, clips, tmp_path):
    given = module.HiggsTTSTrainVoice.execute(model, "anna", "my anna", 4, "none", 1e-4, 8)
    adapted, audio, losses, info = given.args
    out = tmp_path / "models" / "loras" / "my anna.safetensors"
    assert calls == [(clips, out, TrainParams(4, 1e-4, 8), None)]
    assert adapted.engine.config.adapters == (Adapter(str(out), 0.65),)
    assert audio["waveform"].shape == (1, 1, 48000) and losses == {"loss": [4.5]}
    assert (
        "Trained on 5.0 minutes of speech in 60 clips. Kept the LoRA of step 2, which is best at a strength of 0.65"
        in info
    )
    assert "Warning: bad.wav was left out. It is silent." in info
    assert "Warning: Without a clip, 3 of 9 words are wrong." in info
    assert (
        "Step 2: loss 4.50 (ends 1.50), of held-out clips 5.00 (2.00). Strength 0.65: 0 of 9 words wrong with a clip, "
        "3 without"
    ) in info


def test_an_unchanged_lora_is_not_trained_again(module, model, calls, clips):
    node = module.HiggsTTSTrainVoice
    node.execute(model, "anna", "my anna")
    first = node.fingerprint_inputs("anna", "my anna")
    assert node.fingerprint_inputs("anna", "my anna") == first
    (clips / "more.txt").write_text("Hello.", encoding="utf-8")
    assert node.fingerprint_inputs("anna", "my anna") != first
    changed = node.fingerprint_inputs("anna", "my anna")
    calls[0][1].unlink()
    assert node.fingerprint_inputs("anna", "my anna") != changed


def test_wrong_folders_and_names_are_refused_before_the_run(module, clips, tmp_path):
    check = module.HiggsTTSTrainVoice.validate_inputs
    other = tmp_path / "models" / "loras" / "other.safetensors"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    assert check("anna", "new") is check(None, None) is True
    for recordings, name, told in (
        ("nobody", "new", "there are no recordings at"),
        (" ", "new", "there are no recordings at"),
        ("/etc", "new", "outside the folders"),
        ("anna", "../out", "not a file name"),
        ("anna", "other", "was not trained here"),
    ):
        with pytest.raises(HiggsError, match=f"^Higgs Train Voice: .*{told}"):
            check(recordings, name)
    (other.parent / "other.training").mkdir()
    assert check("anna", "other") is True


def test_a_missing_whisper_and_a_server_are_refused(module, model, calls):
    with pytest.raises(HiggsError, match="there is no 'tiny' in models/whisper"):
        module.HiggsTTSTrainVoice.execute(model, "anna", "x", whisper="tiny")
    server = module.ServerModel(None)
    with pytest.raises(HiggsError, match="the model runs on a server"):
        module.HiggsTTSTrainVoice.execute(server, "anna", "x")


def test_stop_ends_it(module, model, calls, monkeypatch):
    def stop():
        raise InterruptedError

    monkeypatch.setattr(module, "check_interrupt", stop)
    with pytest.raises(InterruptedError):
        module.HiggsTTSTrainVoice.execute(model, "anna", "x")
