"""Measures of sound for tests, apart from the engine's own."""

from __future__ import annotations

import torch

from ..engine.audio.resample import resample


def true_peak(wav: torch.Tensor, rate: int) -> float:
    """Return the true peak of sound [C, n] in dB of full scale."""
    return float(20 * torch.cat([wav, resample(wav, rate, 4 * rate)], 1).abs().max().log10())


def noise_floor(wav: torch.Tensor, rate: int) -> float:
    """Return the RMS, in dB, of the quietest half second of sound [C, n]."""
    powers = wav.double().square().mean(0).unfold(0, rate // 2, rate // 10).mean(1)
    return float(10 * powers.min().log10())
