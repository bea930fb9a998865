"""Voices on disk, and checks of reference clips."""

import math
import os

import pytest
import torch
from higgs_tts.engine.audio.resample import check_rate
from higgs_tts.engine.core.config import ClipParams
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.prompt.lengths import misfit
from higgs_tts.engine.voice import voice as voice_module
from higgs_tts.engine.voice.clip import check_clip, cut_clip, prepare_clip
from higgs_tts.engine.voice.voice import Voice
from safetensors import safe_open
from safetensors.torch import save_file

CODES = torch.arange(40).reshape(5, 8) * 26


def tone(rate, seconds, hertz=440.0):
    return 0.5 * torch.sin(2 * math.pi * hertz * torch.arange(int(rate * seconds), dtype=torch.float64) / rate).float()


@pytest.mark.parametrize(
    ("start", "length", "first", "count"),
    [(0, 0, 0, 600), (2.5, 0, 25, 575), (2.5, 1.2, 25, 12), (59, 10, 590, 10), (0, 30, 0, 300)],
)
def test_a_clip_is_cut_from_a_long_recording(start, length, first, count):
    wav = torch.arange(600.0).repeat(2, 1)
    part = cut_clip(wav, 10, ClipParams(start, length))
    assert part.shape == (2, count) and part[1, 0] == first
    assert torch.equal(cut_clip(wav[0], 10, ClipParams(start, length)), part[0])


def test_a_start_after_the_end_is_refused():
    with pytest.raises(HiggsError, match=r"start is 60 s, but the clip is 60\.0 s long"):
        cut_clip(torch.zeros(1, 600), 10, ClipParams(60))


@pytest.mark.parametrize(
    ("seconds", "told"), [(5.0, ""), (12.0, ""), (0.5, "too long for 0.5 s of speech"), (90.0, "too short for 90.0 s")]
)
def test_a_transcript_that_does_not_fit_the_clip_is_warned_about(seconds, told):
    said = misfit("This is what somebody says in about six seconds, neither slowly nor very fast, if at all.", seconds)
    assert told in said and bool(told) == bool(said)


@pytest.mark.parametrize("transcript", ["Said so, «voilà» 你好.", "", None])
def test_a_saved_voice_loads_unchanged(tmp_path, transcript):
    path = tmp_path / "new folder" / "Zoë.safetensors"
    assert Voice(CODES, transcript, "Zoë", "256+768").save(str(path)) == path
    loaded = Voice.load(path)
    assert torch.equal(loaded.codes, CODES) and loaded.codes.dtype == torch.int64
    assert (loaded.transcript, loaded.name, loaded.codec) == (transcript, "Zoë", "256+768")
    assert loaded.seconds == pytest.approx(0.2)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["sample_rate"], metadata["frame_rate"], metadata["format_version"]) == ("24000", "25", "1")


def test_half_an_emoji_stops_no_saving(tmp_path):
    loaded = Voice.load(Voice(CODES, "Hi \ud83d.", "Zo\udceb").save(tmp_path / "a.safetensors"))
    assert (loaded.transcript, loaded.name) == ("Hi .", "Zo")


def test_a_voice_keeps_its_own_copy_of_the_codes():
    codes = CODES.clone()
    voice = Voice(codes)
    codes[0, 0] = 99
    assert voice.codes[0, 0] == 0
    assert Voice(codes.to(torch.uint8)).codes.dtype == torch.int64


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (CODES.float(), "float32"),
        (CODES > 3, "bool"),
        (CODES[0], r"\[8\]"),
        (CODES[:0], r"\[0, 8\]"),
        (CODES - 1, r"-1\.\.1013"),
        (CODES + 10, r"10\.\.1024"),
    ],
)
def test_bad_codes_are_refused(codes, told):
    with pytest.raises(HiggsError, match=told):
        Voice(codes)
    assert Voice(torch.tensor([[0, 1023]])).codes.tolist() == [[0, 1023]]


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    Voice(CODES, name="old").save(path)

    def refuse(source, target):
        assert os.path.getsize(source) > CODES.numel()
        raise PermissionError(13, "file is open", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(voice_module.os, "replace", refuse)
        with pytest.raises(HiggsError, match=r"a\.safetensors could not be written: file is open\."):
            Voice(CODES, name="new").save(path)
    assert Voice.load(path).name == "old" and list(tmp_path.iterdir()) == [path]
    Voice(CODES, name="new").save(path)
    assert Voice.load(path).name == "new" and list(tmp_path.iterdir()) == [path]


def test_loading_does_not_lock_the_file(tmp_path):
    path = Voice(CODES).save(tmp_path / "a.safetensors")
    voice = Voice.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(voice.codes, CODES)


META = {"format": "higgs-tts-voice", "format_version": "1", "sample_rate": "24000", "frame_rate": "25"}


@pytest.mark.parametrize(
    ("tensors", "metadata", "told"),
    [
        ({"model.norm.weight": torch.ones(3)}, None, r"1 tensors"),
        ({"codes": CODES}, {"format": "pt"}, r"not a Higgs voice"),
        ({"other": CODES}, META, r"not a Higgs voice"),
        ({"codes": CODES}, META | {"format_version": "2"}, r"version '2'.*Update"),
        ({"codes": CODES}, META | {"frame_rate": "50"}, r"frame_rate 50.*at 25"),
        ({"codes": CODES}, META | {"sample_rate": "16000"}, r"sample_rate 16000.*at 24000"),
        ({"codes": CODES + 100}, META, r"100\.\.1114"),
        ({"codes": CODES.float()}, META, r"float32"),
    ],
)
def test_loading_names_the_wrong_file(tmp_path, tensors, metadata, told):
    path = tmp_path / "wrong.safetensors"
    save_file(tensors, path, metadata)
    with pytest.raises(HiggsError, match=told) as caught:
        Voice.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"RIFF\x24\x00\x00\x00WAVEfmt ", b"\x80\x04\x95pickle", None])
def test_loading_a_file_that_is_no_safetensors_is_refused(tmp_path, content):
    path = tmp_path / "wrong.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HiggsError, match=r"wrong\.wav"):
        Voice.load(path)


@pytest.mark.parametrize(
    ("wav", "told"),
    [
        (torch.zeros(0), "empty"),
        (torch.zeros(1, 0), "empty"),
        (torch.zeros(0, 24_000), "empty"),
        (torch.zeros(2, 48_000), "silent"),
        (tone(24_000, 2) * 1e-4, "silent"),
        (torch.stack([tone(24_000, 2), -tone(24_000, 2)]), "silent"),  # what is heard is the mix of both channels
        (tone(24_000, 0.9), "0.90 s.*5 to 30"),
        (tone(24_000, 0.996), "0.99 s.*5 to 30"),
        (tone(24_000, 30.02), "30.1 s.*Trim"),
        (tone(24_000, 31), "31.0 s.*Trim"),
        (torch.full((24_000,), float("nan")), "24000 samples"),
        (torch.cat([tone(24_000, 2), torch.tensor([float("inf")])]), "1 samples"),
        (torch.zeros(1, 1, 24_000), r"\[1, 1, 24000\]"),
    ],
)
def test_unusable_clips_are_refused(wav, told):
    with pytest.raises(HiggsError, match=told):
        check_clip(wav, 24_000)


def test_usable_clips_are_accepted():
    check_clip(tone(24_000, 1), 24_000)
    check_clip(tone(8_000, 30)[None], 8_000)
    check_clip(tone(24_000, 2).double().numpy() * 1e-3, 24_000)
    with pytest.raises(HiggsError, match="sample rate of 0"):
        check_clip(tone(24_000, 1), 0)


def test_preparing_a_clip_mixes_to_mono_and_keeps_its_rate():
    left, right = tone(24_000, 1), tone(24_000, 1, 300)
    mono = prepare_clip(torch.stack([left, right]), 24_000)
    assert mono.dtype == torch.float32 and torch.allclose(mono, (left + right) / 2)
    assert torch.equal(prepare_clip(left.numpy(), 24_000), left)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_preparing_a_clip_resamples_it(rate):
    heard = prepare_clip(tone(rate, 1)[None].expand(2, -1), rate)
    assert heard.shape == (24_000,)
    assert torch.allclose(heard[1000:-1000], tone(24_000, 1)[1000:-1000], atol=2e-3)


def test_preparing_refuses_a_rate_that_needs_gigabytes():
    with pytest.raises(HiggsError, match="47999"):
        prepare_clip(tone(47_999, 1), 47_999)
    with pytest.raises(HiggsError, match=r"The bed has the unusual sample rate 0\."):
        check_rate(0, "The bed")
