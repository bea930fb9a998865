"""The checks of a clip, which the page shows and engines warn by."""

import math

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, SAMPLE_RATE, clip_checks, read_clip
from higgs_tts.engine.voice.reference import reference_of

VOICES = sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))


def clip_of(name):
    wav, rate = read_clip(BUILT_IN_CLIPS / f"{name}.flac")
    return torch.from_numpy(wav), rate


def in_a_room(wav, rate, seconds, decibels=0.0):
    """Return wav [1, n] in a room with this reverberation time, whose direct sound is so many dB above the rest."""
    count = round(1.2 * seconds * rate)
    noise = torch.randn(count, generator=torch.Generator().manual_seed(1))
    tail = noise * 10 ** (-3 * torch.arange(count) / rate / seconds)
    tail *= 10 ** (-decibels / 20) / tail.square().sum().sqrt()
    tail[0] += 1
    size = 1 << (wav.shape[-1] + count).bit_length()
    return torch.fft.irfft(torch.fft.rfft(wav, size) * torch.fft.rfft(tail, size))[:, : wav.shape[-1]]


def noisy(wav, decibels):
    noise = torch.randn(wav.shape, generator=torch.Generator().manual_seed(2))
    return wav + noise * wav.square().mean().sqrt() * 10 ** (-decibels / 20)


def verdicts(wav, rate):
    return {check.name: check.verdict for check in clip_checks(wav, rate)}


@pytest.mark.parametrize("name", VOICES)
def test_the_packs_clips_are_good(name):
    wav, rate = clip_of(name)
    assert {name: verdict for name, verdict in verdicts(wav, rate).items() if name != "length"} == {
        "level": "good", "noise": "good", "echo": "good", "speech": "good",
    }  # fmt: skip


@pytest.mark.parametrize("name", VOICES)
@pytest.mark.parametrize(
    ("seconds", "decibels", "allowed"),
    [
        (0.2, 6, ["good"]),
        (0.4, 0, ["fair", "poor"]),
        (0.8, 0, ["fair", "poor"]),
        (1.5, 0, ["poor"]),
        (0.8, -4, ["poor"]),
    ],
)
def test_echo_is_told_by_how_fast_speech_falls_silent(name, seconds, decibels, allowed):
    wav, rate = clip_of(name)
    assert verdicts(in_a_room(wav, rate, seconds, decibels), rate)["echo"] in allowed


@pytest.mark.parametrize("decibels, verdict", [(40, "good"), (20, "fair"), (10, "poor"), (0, "poor")])
def test_noise_is_told_and_is_not_an_echo(decibels, verdict):
    wav, rate = clip_of("oliver")
    told = verdicts(noisy(wav, decibels), rate)
    assert told["noise"] == verdict and told.get("echo") != "poor"


def test_level_and_length_are_told():
    wav, rate = clip_of("ruth")
    assert verdicts(wav / 100, rate)["level"] == "fair"
    assert verdicts((8 * wav).clamp(-1, 1), rate)["level"] == "poor"
    lengths = {2: "fair", 5.2: "good", 15.8: "fair"}
    assert {n: verdicts(wav.repeat(1, 4)[:, : round(n * rate)], rate)["length"] for n in lengths} == lengths
    (level, _, noise, echo, speech) = ([check.shown for check in clip_checks(wav, rate)][at] for at in (1, 0, 2, 3, 4))
    assert level.endswith(" LUFS") and noise.endswith(" dB") and echo.endswith(" s") and speech == ""


@pytest.mark.parametrize(
    "wav, name, told",
    [
        (torch.zeros(1, 0), "length", "is empty"),
        (torch.zeros(1, 48000), "level", "is silent"),
        (torch.full((1, 48000), math.nan), "level", "not numbers"),
        (torch.ones(1, 12000), "length", "too short"),
        (torch.ones(1, 31 * SAMPLE_RATE), "length", "31.0 s long"),
    ],
)
def test_a_clip_that_cannot_become_a_voice_has_one_check(wav, name, told):
    (check,) = clip_checks(wav, SAMPLE_RATE)
    assert (check.name, check.verdict) == (name, "poor") and told in check.advice


def test_a_clip_of_two_samples_is_checked():
    assert clip_checks(torch.full((1, 2), 0.5), 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda wav, rate: wav,
        lambda wav, rate: in_a_room(wav, rate, 1.0),
        lambda wav, rate: noisy(wav, 5),
        lambda wav, rate: 8 * wav,
        lambda wav, rate: torch.sin(torch.arange(wav.shape[1]) / 9)[None] / 3,
        lambda wav, rate: wav[:, : 2 * rate],
    ],
)
def test_an_engine_warns_of_what_is_poor_and_of_no_more(change):
    wav, rate = clip_of("oliver")
    wav = change(wav, rate)
    _, warnings = reference_of(wav, rate)
    assert list(warnings) == [check.advice for check in clip_checks(wav, rate) if check.verdict == "poor"]
