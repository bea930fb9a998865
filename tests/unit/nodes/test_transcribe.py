"""Higgs Transcribe: the list of Whisper models, their input, and freeing memory first."""

from __future__ import annotations

import json

import pytest
import torch
from higgs_tts.engine import HiggsError


@pytest.fixture
def node(load_module, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "whisper" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    (folder / "model.safetensors").write_bytes(b"1234")
    module = load_module("transcribe")
    module.heard = []

    def transcribe(folder, wav, rate, device):
        module.heard.append((folder.name, tuple(wav.shape), rate, device.type))
        return "Hello."

    monkeypatch.setattr(module, "transcribe", transcribe)
    return module


AUDIO = {"waveform": torch.zeros(1, 2, 8000), "sample_rate": 1000}


def test_part_of_a_recording_can_be_transcribed(node):
    assert node.HiggsTTSTranscribe.execute(AUDIO, "mine", 2.0, 3.0).args == ("Hello.",)
    assert node.heard == [("mine", (2, 3000), 1000, "cpu")]


def test_the_choices_are_local_models_and_downloads(node):
    assert node.choices()[0] == "mine" and "download: whisper-small" in node.choices()
    check = node.HiggsTTSTranscribe.validate_inputs
    assert check("mine") is check(None) is check("download: whisper-small") is check("whisper-small") is True
    assert "there is no 'other' in models/whisper" in check("other")


def test_a_download_is_fetched_once(node, tmp_path, monkeypatch):
    fetched = []

    def fetch(name, root, on_progress):
        fetched.append((name, root))
        on_progress(0.5, "")
        return root / "mine"

    monkeypatch.setattr(node, "download_whisper", fetch)
    assert node.HiggsTTSTranscribe.execute(AUDIO, "download: whisper-small").args == ("Hello.",)
    assert fetched == [("whisper-small", tmp_path / "models" / "whisper")]
    assert node.HiggsTTSTranscribe.execute(AUDIO, "mine").args == ("Hello.",) and len(fetched) == 1


def test_empty_audio_is_refused(node):
    with pytest.raises(HiggsError, match=r"^Higgs Transcribe: the audio input is empty"):
        node.HiggsTTSTranscribe.execute(None, "mine")
