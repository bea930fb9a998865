"""The level of reference clips, and warnings about clipping and clips without speech."""

import math

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, SamplingParams, read_clip
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.voice.clip import prepare_clip
from higgs_tts.engine.voice.reference import LOUDNESS, reference_of

VOICES = sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))
TIME = torch.arange(6 * SAMPLE_RATE) / SAMPLE_RATE
CHORDS = [(261.6, 329.6, 392.0), (220.0, 261.6, 329.6), (174.6, 220.0, 261.6), (196.0, 246.9, 293.7)]


def clip_of(name):
    wav, rate = read_clip(BUILT_IN_CLIPS / f"{name}.flac")
    return torch.from_numpy(wav), rate


def noise(like, seed=0):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def chord(notes, seconds, harmonics=1, decay=0.0):
    time = torch.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    waves = [torch.sin(2 * math.pi * f * n * time + f) / n for f in notes for n in range(1, harmonics + 1)]
    return 0.1 * sum(waves) * torch.exp(-decay * time)


def chords(seconds, each, **how):
    return torch.cat([chord(CHORDS[at % 4], each, **how) for at in range(round(seconds / each))])


@pytest.mark.parametrize("name", VOICES)
def test_the_packs_clips_are_left_as_they_are_and_have_no_warning(name):
    wav, rate = clip_of(name)
    clip, warnings = reference_of(wav, rate)
    assert torch.equal(clip, prepare_clip(wav, rate)) and not warnings
    assert abs(integrated_loudness(clip) - LOUDNESS) < 1


@pytest.mark.parametrize("decibels", [-70, -40, -20, -12, -7, -5, 0, 5, 7, 12, 18])
def test_a_clip_of_another_level_is_brought_to_that_of_the_voices(decibels):
    wav, rate = clip_of("oliver")
    clip, _ = reference_of(wav * 10 ** (decibels / 20), rate)
    at = integrated_loudness(clip)
    assert abs(at - LOUDNESS) < (0.1 if abs(decibels) > 6 else 6.0)
    if abs(decibels) < 5:
        assert torch.equal(clip, prepare_clip(wav * 10 ** (decibels / 20), rate))


def test_a_quiet_and_a_loud_clip_are_the_same_voice(tmp_path):
    wav, rate = clip_of("oliver")
    engine = Engine(EngineConfig(model=str(EMBEDDED), device="cpu", dtype="fp32"))
    tenth, eightfold = engine.encode_voice(wav / 10, rate), engine.encode_voice(wav * 8, rate)
    assert float((tenth.codes == eightfold.codes).float().mean()) > 0.99
    assert eightfold.warnings[0].startswith("The clip is overdriven: ") and not tenth.warnings
    assert not engine.encode_voice(wav, rate).warnings
    with engine:
        params = SamplingParams(max_frames=8, check=False)
        speech = engine.speak("Hello.", eightfold, params)
        assert eightfold.warnings[0] in speech.warnings
        assert not any("overdriven" in warning for warning in engine.speak("Hello.", tenth, params).warnings)


CLIPPED = {  # name: (change of a clip [1, n], is it clipped)
    "four times, cut off": (lambda wav: (4 * wav).clamp(-1, 1), True),
    "four times, cut off at the top only": (lambda wav: (4 * wav).clamp(max=1), True),
    "eight times, as floats": (lambda wav: 8 * wav, True),
    "16 bits": (lambda wav: (4 * wav).clamp(-1, 32767 / 32768), True),
    "one channel of two": (lambda wav: torch.cat([wav, (4 * wav).clamp(-1, 1)]), True),
    "for a second": (lambda wav: torch.cat([wav[:, :24000], (6 * wav[:, 24000:48000]).clamp(-1, 1)], 1), True),
    "normalised to full scale": (lambda wav: wav / wav.abs().max(), False),
    "one click": (lambda wav: torch.cat([wav, torch.ones(1, 4), wav], 1), False),
    "half": (lambda wav: wav / 2, False),
    "as it is": (lambda wav: wav, False),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_a_clip_whose_peaks_are_cut_off_is_warned_of(name):
    change, is_clipped = CLIPPED[name]
    wav, rate = clip_of("amber")
    _, warnings = reference_of(change(wav), rate)
    assert any("overdriven" in warning for warning in warnings) == is_clipped


NO_SPEECH = {
    "chords of two seconds": chords(30, 2.0),
    "chords with harmonics": chords(30, 2.0, harmonics=8),
    "chords of half a second": chords(30, 0.5),
    "one chord": chords(6, 6.0),
    "a piano": chords(20, 1.0, harmonics=6, decay=3.0),
    "a melody": torch.cat([chord([f], 1 / 3, harmonics=5) for f in (262, 294, 330, 349, 392, 440) * 4]),
    "a tone": torch.sin(2 * math.pi * 440 * TIME) / 2,
    "hum": chord([50, 100, 150], 6.0),
    "a sweep": torch.sin(2 * math.pi * (200 + 100 * TIME) * TIME) / 3,
    "white noise": 0.1 * noise(TIME),
    "noise in bursts": 0.1 * noise(TIME) * (TIME % 1 < 0.5),
    "tremolo": chord(CHORDS[0], 6.0) * (1 + 0.9 * torch.sin(2 * math.pi * 4 * TIME)),
}


@pytest.mark.parametrize("name", NO_SPEECH)
def test_a_clip_without_speech_is_warned_of(name):
    _, warnings = reference_of(NO_SPEECH[name], SAMPLE_RATE)
    assert any("does not sound like speech" in warning for warning in warnings)


SIZE = 1 << 18
ECHO = torch.exp(-TIME[:SAMPLE_RATE] * 6) * noise(TIME[:SAMPLE_RATE])
SPEECH = {  # changes of a clip [1, n]
    "with as much noise": lambda wav: wav + wav.std() * noise(wav),
    "over a piano": lambda wav: wav + chords(8, 1.0, harmonics=6, decay=3.0)[: wav.shape[1]],
    "over hum": lambda wav: wav + chord([50, 100, 150], 8.0)[: wav.shape[1]] / 3,
    "in a church": lambda wav: torch.fft.irfft(torch.fft.rfft(wav, SIZE) * torch.fft.rfft(ECHO, SIZE))[:, :150_000],
    "slowly": lambda wav: torch.nn.functional.interpolate(wav[None], scale_factor=1.5, mode="linear")[0],
    "very quietly": lambda wav: wav / 1000,
    "far too loud": lambda wav: (8 * wav).clamp(-1, 1),
    "between silences": lambda wav: torch.cat([torch.zeros(1, 96_000), wav, torch.zeros(1, 96_000)], 1),
    "by telephone": lambda wav: prepare_clip(prepare_clip(wav[:, ::3], 8000)[None], SAMPLE_RATE)[None],
}


@pytest.mark.parametrize("change", SPEECH)
@pytest.mark.parametrize("name", ["amber", "oliver", "marcus"])
def test_bad_recordings_of_speech_are_speech(name, change):
    wav, rate = clip_of(name)
    _, warnings = reference_of(SPEECH[change](wav), rate)
    assert not any("does not sound like speech" in warning for warning in warnings)
