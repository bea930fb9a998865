"""Resampling equals torchaudio's, sample for sample."""

import pathlib

import pytest
import torch
from higgs_tts.engine import HiggsError
from higgs_tts.engine.audio.resample import resample
from safetensors.torch import load_file

VALUES = load_file(pathlib.Path(__file__).parent / "data" / "resampled.safetensors")  # made with torchaudio 2.11
RATES = sorted({tuple(map(int, name.split()[:2])) for name in VALUES})


@pytest.mark.parametrize("rate, to", RATES)
def test_resampling_equals_recorded_values_of_torchaudio(rate, to):
    out = resample(VALUES[f"{rate} {to} in"], rate, to)
    wanted = VALUES[f"{rate} {to} out"]
    assert out.shape == wanted.shape and (out - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("rate, to", [*RATES, (44_100, 16_000), (96_000, 24_000), (24_000, 24_000)])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 2, 4001)])
def test_resampling_equals_torchaudio_if_it_loads(rate, to, shape):
    try:
        from torchaudio import functional
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"no usable torchaudio here: {error}")
    wav = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    wanted = functional.resample(wav, rate, to)
    assert torch.equal(resample(wav, rate, to), wanted)


def test_no_sound_stays_no_sound():
    assert resample(torch.zeros(2, 0), 44_100, 24_000).shape == (2, 0)


def test_a_tone_keeps_its_pitch_and_too_high_ones_vanish():
    def tone(hz, rate):
        return torch.sin(2 * torch.pi * hz * torch.arange(rate, dtype=torch.float64) / rate).float()

    low, high = (resample(tone(hz, 44_100), 44_100, 16_000) for hz in (440, 12_000))
    assert len(low) == 16_000 and (low - tone(440, 16_000))[200:-200].abs().max() < 1e-3
    assert high[200:-200].abs().max() < 5e-3


@pytest.mark.parametrize("rate, to", [(47_999, 24_000), (24_000, 47_999), (0, 24_000)])
def test_rates_that_need_gigabytes_of_filters_are_refused(rate, to):
    with pytest.raises(HiggsError, match=f"from {rate} to {to} Hz"):
        resample(torch.zeros(8), rate, to)
