"""Voices without a talker: a file's description, and the sound of its codes."""

from __future__ import annotations

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    Engine,
    EngineConfig,
    HiggsError,
    Voice,
    clip_seconds,
    codec_of,
    read_voice_head,
    voice_sound,
)
from higgs_tts.engine.tools.tiny import write_tiny
from safetensors.torch import save_file


def codes(frames, seed=0):
    return torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(seed))


def test_a_voice_sounds_as_its_codes_do(tmp_path):
    voice = Voice(codes(30), "One.", "anna", codec_of(EMBEDDED))
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
        expected = engine.loaded.decoder.decode(voice.codes.T[None])[0]
    wav = voice_sound(voice, EMBEDDED)
    assert wav.shape == (30 * 960,) and torch.allclose(wav, expected.clamp(-1, 1), atol=1e-6) and wav.abs().max() > 0.01


def test_a_voice_of_another_codec_is_refused(tmp_path):
    write_tiny(tmp_path / "v3", "v3")
    assert codec_of(tmp_path / "v3") != codec_of(EMBEDDED)
    with pytest.raises(HiggsError, match="different model"):
        voice_sound(Voice(codes(5), codec=codec_of(tmp_path / "v3")), EMBEDDED)


def test_a_voice_s_header_agrees_with_loading(tmp_path):
    path = Voice(codes(50), "One, two.", "anna", "a codec").save(tmp_path / "anna.safetensors")
    assert read_voice_head(path) == (2.0, "One, two.", "a codec")
    assert read_voice_head(Voice(codes(25)).save(tmp_path / "b.safetensors")) == (1.0, None, "")
    save_file({"lora_down": torch.zeros(2)}, tmp_path / "lora.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    for name, told in (("lora", "not a Higgs voice"), ("text", "cannot be read"), ("none", "no voice file")):
        with pytest.raises(HiggsError, match=told):
            read_voice_head(tmp_path / f"{name}.safetensors")


def test_the_length_of_a_clip_is_read_from_its_header(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", torch.zeros(12_000).numpy(), 8000)
    assert clip_seconds(tmp_path / "a.flac") == 1.5
    (tmp_path / "b.wav").write_text("text")
    for name, told in (("b.wav", "cannot be read as audio"), ("c.wav", "no audio file")):
        with pytest.raises(HiggsError, match=told):
            clip_seconds(tmp_path / name)
