"""Integrated loudness as ITU-R BS.1770-4 defines it for one channel, and speech brought to one loudness."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE

TARGET = -20.0  # LUFS: speech as loud as podcasts have it, less headroom for what is mixed in
MOST_GAIN = 8.0  # dB up or down: a whisper stays one
_PEAK = 0.98
_BLOCK, _HOP = 2 * SAMPLE_RATE // 5, SAMPLE_RATE // 10  # 400 ms, three quarters of it shared with the next
_SILENT, _RELATIVE = -70.0, -10.0  # LUFS; LU below the mean of what is not silent
_SPECTRUM = 1 << 14  # samples that are filtered at once: spectra that fit into a processor's cache, all of one response
_TAIL = SAMPLE_RATE // 5  # of those, how many only let the filters swing in; e^-48 of what was before is left then
_TOGETHER = 8  # spectra: memory that the allocator keeps; of all, it gives it back and takes it anew each time
# The two filters of K-weighting: (frequency in Hz, Q, gain in dB).
_SHELF, _HIGH_PASS = (1681.974450955533, 0.7071752369554196, 3.999843853973347), (38.13547087602444, 0.5003270373238773)


def integrated_loudness(wav: torch.Tensor) -> float:
    """LUFS of wav [n] at SAMPLE_RATE; -inf for silence. Of less than 400 ms, of the whole of it."""
    if not len(wav):
        return -math.inf
    blocks = _weighted(wav.float()).square()
    if len(wav) > _BLOCK:
        blocks = blocks.unfold(0, _BLOCK, _HOP)
    powers = blocks.reshape(-1, blocks.shape[-1]).mean(1)
    loud = powers[_lufs(powers) > _SILENT]
    if not len(loud):
        return -math.inf
    gated = loud[_lufs(loud) > float(_lufs(loud.mean())) + _RELATIVE]
    return float(_lufs(gated.mean()))


def evening_gain(wav: torch.Tensor) -> float:
    """Return the gain that brings speech [n] to TARGET, at most MOST_GAIN up or down and never into clipping."""
    loudness = integrated_loudness(wav)
    if math.isinf(loudness):
        return 1.0
    decibels = min(MOST_GAIN, max(-MOST_GAIN, TARGET - loudness))
    return min(10 ** (decibels / 20), max(1.0, _PEAK / float(wav.abs().max())))


def set_volume(wav: torch.Tensor, volume: float, even: bool) -> None:
    """Makes speech [n] so many times as loud, in place; even: after it was brought to TARGET."""
    gain = volume * (evening_gain(wav) if even else 1.0)
    if gain != 1.0:
        wav.mul_(gain).clamp_(-1.0, 1.0)


def _lufs(power: torch.Tensor) -> torch.Tensor:
    return -0.691 + 10 * power.clamp_min(1e-12).log10()


def _weighted(wav: torch.Tensor) -> torch.Tensor:
    """K-weighted, by the filters' response to each frequency (overlap-save)."""
    kept = _SPECTRUM - _TAIL
    parts = F.pad(wav, (_TAIL, -len(wav) % kept)).unfold(0, _SPECTRUM, kept)
    found = []
    for some in parts.split(_TOGETHER):
        spectra = torch.fft.rfft(some.double()).mul_(_response())
        found.append(torch.fft.irfft(spectra, _SPECTRUM)[:, _TAIL:].float())
    return torch.cat(found).flatten()[: len(wav)]


@functools.cache
def _response() -> torch.Tensor:
    z = torch.exp(-1j * math.pi * torch.linspace(0, 1, _SPECTRUM // 2 + 1, dtype=torch.float64))
    return _shelf(z) * _high_pass(z)


def _shelf(z: torch.Tensor) -> torch.Tensor:
    frequency, q, decibels = _SHELF
    k, high = math.tan(math.pi * frequency / SAMPLE_RATE), 10 ** (decibels / 20)
    band = high**0.4996667741545416
    top = (high + band * k / q + k * k) + 2 * (k * k - high) * z + (high - band * k / q + k * k) * z**2
    return top / ((1 + k / q + k * k) + 2 * (k * k - 1) * z + (1 - k / q + k * k) * z**2)


def _high_pass(z: torch.Tensor) -> torch.Tensor:
    frequency, q = _HIGH_PASS
    k = math.tan(math.pi * frequency / SAMPLE_RATE)
    whole = 1 + k / q + k * k
    return (1 - 2 * z + z**2) / (1 + 2 * (k * k - 1) / whole * z + (1 - k / q + k * k) / whole * z**2)
