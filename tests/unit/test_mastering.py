"""Sound at a loudness target: the level, true peaks, the noise floor, and what stays as it is."""

import math

import pytest
import torch
from higgs_tts.engine import TARGETS, HiggsError, encode_sound, master
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.audio.mastering import Mastered, Target
from higgs_tts.engine.audio.resample import resample
from higgs_tts.tests.measured import true_peak

CHOICES = [name for name, target in TARGETS.items() if target]


def speech_like(rate, channels=1, seconds=6.0, level=0.05):
    """Noise in syllables, with a peak far above its level."""
    generator = torch.Generator().manual_seed(3)
    time = torch.arange(round(seconds * rate)) / rate
    wav = torch.randn(channels, len(time), generator=generator) * level
    wav *= (0.5 - 0.5 * torch.cos(2 * math.pi * 4 * time)) * (time % 2 < 1.4)
    wav[:, len(time) // 3 : len(time) // 3 + rate // 500] += 0.8
    return wav


def told_of(wav) -> Mastered:
    """Return what mastering tells of sound at 24,000 Hz that has its level already."""
    level = 10 * math.log10(float(wav.square().mean()))
    return master(wav, 24000, Target(level, peak=6.0, is_rms=True))[1]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(("rate", "channels"), [(24000, 1), (44100, 2), (48000, 2), (22050, 1)])
def test_the_result_has_its_level_and_no_peak_above_its_own(choice, rate, channels):
    wav, target = speech_like(rate, channels), TARGETS[choice]
    result, told = master(wav, rate, target)
    if target.is_rms:
        level = 10 * math.log10(float(result.double().square().mean()))
    else:
        level = integrated_loudness(resample(result, rate, 24000))
    assert level == pytest.approx(target.level, abs=0.1) and told.level == pytest.approx(level, abs=1e-3)
    assert true_peak(result, rate) <= target.peak + 0.05 and result.shape == wav.shape


def test_what_is_far_from_a_peak_gets_one_gain():
    """Ten thousandths of a second around a peak are turned down, nothing else is: it does not pump."""
    wav = speech_like(24000)
    result = master(wav, 24000, TARGETS["-16 LUFS"])[0]
    peak = wav.shape[1] // 3
    far = torch.ones(wav.shape[1], dtype=torch.bool)
    far[peak - 600 : peak + 700] = False
    far &= wav[0].abs() > 0.01
    gains = (result / wav)[0, far]
    assert float(gains.max() / gains.min()) < 1.0001
    assert float(result[0, peak] / wav[0, peak]) < 0.5 * float(gains.mean())


def test_a_peak_between_two_samples_counts():
    """A sine of a quarter of the rate, sampled at 45 degrees, peaks 3 dB above its samples."""
    wav = torch.sin(math.pi / 2 * torch.arange(4800) + math.pi / 4)[None]
    assert told_of(wav).peak == pytest.approx(0.0, abs=0.3)
    assert 20 * math.log10(float(wav.abs().max())) == pytest.approx(-3.01, abs=0.01)


@pytest.mark.parametrize("length", [0, 1, 23, 24, 500])
@pytest.mark.parametrize("choice", CHOICES)
def test_silence_and_very_short_sound_stay_whole(length, choice):
    silence = torch.zeros(1, length)
    assert torch.equal(master(silence, 24000, TARGETS[choice])[0], silence)
    click = torch.full((1, length), 0.5)
    result = master(click, 24000, TARGETS[choice])[0]
    assert result.shape == click.shape and torch.isfinite(result).all()


def test_the_noise_floor_is_that_of_the_quietest_half_second():
    wav = torch.cat([torch.full((24000,), 0.1), torch.full((12000,), 0.001), torch.full((24000,), 0.1)])[None]
    assert told_of(wav).floor == pytest.approx(-60.0, abs=0.1)
    assert master(torch.zeros(1, 24000), 24000, TARGETS["ACX"])[1].floor == -math.inf


def test_peaks_are_found_wherever_a_piece_ends(monkeypatch):
    wav = speech_like(24000)
    whole = master(wav, 24000, TARGETS["-19 LUFS"])[0]
    monkeypatch.setattr("higgs_tts.engine.audio.mastering._PIECE", 5000)
    assert torch.allclose(master(wav, 24000, TARGETS["-19 LUFS"])[0], whole, atol=1e-6)


@pytest.mark.parametrize("kind", ["flac", "wav", "mp3", "ogg", "m4b"])
@pytest.mark.parametrize(("rate", "channels"), [(24000, 1), (48000, 2), (44100, 2)])
def test_a_file_has_its_sound_and_its_tags(kind, rate, channels, tmp_path):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    wave = speech_like(rate, channels, seconds=2.0, level=0.02)
    data = encode_sound(wave, rate, kind, {"title": "caf\u00e9"})
    assert data == encode_sound(wave, rate, kind, {"title": "caf\u00e9"})  # no date, version or serial number inside
    path = tmp_path / f"sound.{kind}"
    path.write_bytes(data)
    with av.open(str(path)) as file:
        track = file.streams.audio[0]
        # Opus has no 44,100 Hz, and its decoder always gives 48,000.
        assert (track.rate, track.channels) == (48000 if kind == "ogg" else rate, channels)
        assert {**file.metadata, **track.metadata}.get("title", file.metadata.get("TITLE")) == "caf\u00e9"
        samples = sum(frame.samples for frame in file.decode(track))
    expected = wave.shape[1] * (48000 / rate if kind == "ogg" else 1)
    assert abs(samples - expected) <= (0 if kind in ("flac", "wav") else 4096)


def test_a_rate_that_an_encoder_lacks_is_named():
    pytest.importorskip("av", reason="PyAV is not installed")
    with pytest.raises(HiggsError, match="7321 Hz could not be written as mp3"):
        encode_sound(torch.zeros(1, 2000), 7321, "mp3", {})
