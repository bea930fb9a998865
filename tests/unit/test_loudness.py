"""Integrated loudness against the recommendation's tones, and the gain that evens speech."""

import math

import pytest
import torch
from higgs_tts.engine import SAMPLE_RATE
from higgs_tts.engine.audio.loudness import MOST_GAIN, TARGET, evening_gain, integrated_loudness


def tone(hertz, amplitude, seconds=3.0):
    time = torch.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return amplitude * torch.sin(2 * math.pi * hertz * time)


def test_the_recommendation_s_tone_has_its_loudness():
    """BS.1770-4, annex 1: a sine of 997 Hz and full scale in one channel has -3.01 LKFS."""
    assert integrated_loudness(tone(997, 1.0)) == pytest.approx(-3.01, abs=0.05)


@pytest.mark.parametrize("decibels", [-40, -20, -6])
def test_loudness_is_linear_in_decibels(decibels):
    loud, soft = tone(440, 1.0), tone(440, 10 ** (decibels / 20))
    assert integrated_loudness(soft) - integrated_loudness(loud) == pytest.approx(decibels, abs=1e-3)


def test_frequencies_are_weighted_by_the_k_curve():
    at = {hertz: integrated_loudness(tone(hertz, 0.5)) for hertz in (30, 100, 997, 4000)}
    assert at[30] < at[100] - 2 and at[100] < at[997] < at[4000] - 2


def test_a_sound_counts_the_same_at_any_position():
    """Filtering uses overlapping spectra of 0.7 s: no seam is measured, nor any neighbouring sound."""
    sound = tone(60, 0.4, 0.25)
    found = []
    for hop in range(4, 24):  # a tenth of a second each, as the blocks that are measured
        wav = torch.zeros(3 * SAMPLE_RATE)
        wav[hop * SAMPLE_RATE // 10 :][: len(sound)] = sound
        found.append(integrated_loudness(wav))
    assert max(found) - min(found) < 1e-5


def test_silence_and_soft_parts_are_gated():
    speech = tone(500, 0.3)
    gated = torch.cat([torch.zeros(5 * SAMPLE_RATE), speech, tone(500, 0.003, 5.0), speech, torch.zeros(SAMPLE_RATE)])
    assert integrated_loudness(gated) == pytest.approx(integrated_loudness(speech), abs=0.5)
    assert integrated_loudness(torch.zeros(SAMPLE_RATE)) == integrated_loudness(torch.zeros(0)) == -math.inf


@pytest.mark.parametrize("seconds", [0.05, 0.39, 0.41, 0.55])
def test_short_sounds_are_measured_too(seconds):
    assert integrated_loudness(tone(997, 0.1, seconds)) == pytest.approx(-23.01, abs=0.3)


@pytest.mark.parametrize("amplitude", [0.08, 0.14, 0.25])
def test_speech_is_brought_to_the_target(amplitude):
    wav = tone(997, amplitude)
    assert integrated_loudness(wav * evening_gain(wav)) == pytest.approx(TARGET, abs=0.05)


def test_the_gain_is_bounded_and_never_clips():
    assert 20 * math.log10(evening_gain(tone(997, 0.01))) == pytest.approx(MOST_GAIN)
    assert 20 * math.log10(evening_gain(tone(997, 1.0))) == pytest.approx(-MOST_GAIN)
    click = tone(997, 0.05)
    click[1000] = 0.9
    assert (click * evening_gain(click)).abs().max() <= 0.98 + 1e-6
    assert evening_gain(torch.zeros(100)) == evening_gain(torch.zeros(0)) == 1.0
