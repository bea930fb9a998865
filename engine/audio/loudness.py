"""Integrated loudness by ITU-R BS.1770-4 for mono and stereo, and loudness normalisation of speech."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE

TARGET = -20.0  # LUFS; loudness of podcasts, less headroom for mixing
MOST_GAIN = 8.0  # dB up or down; keeps a whisper a whisper
_PEAK = 0.98
HOPS = 10  # per second
_BLOCK, _HOP = 2 * SAMPLE_RATE // 5, SAMPLE_RATE // HOPS  # 400 ms with 75 % overlap
_SILENT, _RELATIVE = -70.0, -10.0  # absolute gate in LUFS; relative gate in LU
_SPECTRUM = 1 << 14  # FFT size; spectra fit the CPU cache and share one response
_TAIL = SAMPLE_RATE // 5  # samples of each FFT for the filters to settle; earlier input has decayed by e^-48 then
_TOGETHER = 8  # FFTs per batch; few enough for the allocator to reuse the memory
# The two filters of K-weighting: (frequency in Hz, Q, gain in dB).
_SHELF, _HIGH_PASS = (1681.974450955533, 0.7071752369554196, 3.999843853973347), (38.13547087602444, 0.5003270373238773)


def integrated_loudness(wav: torch.Tensor) -> float:
    """Return the LUFS of wav [n] or [C, n] at SAMPLE_RATE; -inf for silence. Audio under 400 ms counts as one block."""
    if not wav.numel():
        return -math.inf
    channels = wav.reshape(-1, wav.shape[-1])
    blocks = torch.stack([_weighted(channel.float()).square() for channel in channels]).sum(0)
    if len(blocks) > _BLOCK:
        blocks = blocks.unfold(0, _BLOCK, _HOP)
    return gated_loudness(blocks.reshape(-1, blocks.shape[-1]).mean(1))


def gated_loudness(powers: torch.Tensor) -> float:
    """Return the LUFS of sound whose K-weighted blocks of 400 ms have these powers [n]; -inf for silence."""
    loud = powers[_lufs(powers) > _SILENT]
    if not len(loud):
        return -math.inf
    gated = loud[_lufs(loud) > float(_lufs(loud.mean())) + _RELATIVE]
    return float(_lufs(gated.mean()))


class HopPowers:
    """Mean power of each tenth of a second of sound that comes in pieces. rate: Hz."""

    def __init__(self, rate: int):
        self._size, self._rest = max(1, rate // HOPS), torch.empty(0)
        self._powers: list[torch.Tensor] = []
        self._sum, self._count = 0.0, 0

    def add(self, power: torch.Tensor) -> None:
        """Append samples [n] of the power."""
        self._sum, self._count = self._sum + float(power.double().sum()), self._count + len(power)
        power = torch.cat([self._rest, power])
        whole = len(power) - len(power) % self._size
        self._powers.append(power[:whole].view(-1, self._size).mean(1))
        self._rest = power[whole:]

    @property
    def mean(self) -> float:
        """Mean power of all sound; 0 for none."""
        return self._sum / max(1, self._count)

    def windows(self, hops: int) -> torch.Tensor:
        """Return the mean powers of all stretches of so many hops. Shorter sound counts as one stretch."""
        powers = torch.cat([torch.empty(0), *self._powers])
        return powers.unfold(0, hops, 1).mean(1) if len(powers) >= hops else torch.tensor([self.mean])


class KPowers:
    """K-weighted power of sound at SAMPLE_RATE that comes in pieces."""

    def __init__(self):
        self._hops = HopPowers(SAMPLE_RATE)
        self._before: torch.Tensor | None = None  # samples that the filters still hear

    def add(self, wav: torch.Tensor) -> None:
        """Append samples [C, n]."""
        behind = wav if self._before is None else torch.cat([self._before, wav], 1)
        new = wav.shape[1]
        self._before = behind[:, max(0, behind.shape[1] - _TAIL) :]
        powers = [_weighted(channel)[len(channel) - new :].square() for channel in behind.float()]
        self._hops.add(torch.stack(powers).sum(0))

    def blocks(self) -> torch.Tensor:
        """Return the powers of blocks of 400 ms with 75 % overlap, for `gated_loudness`."""
        return self._hops.windows(_BLOCK // _HOP)


def evening_gain(wav: torch.Tensor) -> float:
    """Return the gain that brings speech [n] to TARGET, at most MOST_GAIN up or down and never into clipping."""
    loudness = integrated_loudness(wav)
    if math.isinf(loudness):
        return 1.0
    decibels = min(MOST_GAIN, max(-MOST_GAIN, TARGET - loudness))
    return min(10 ** (decibels / 20), max(1.0, _PEAK / float(wav.abs().max())))


def set_volume(wav: torch.Tensor, volume: float, even: bool) -> None:
    """Scale speech [n] by `volume` in place. even: normalise to TARGET first."""
    gain = volume * (evening_gain(wav) if even else 1.0)
    if gain != 1.0:
        wav.mul_(gain).clamp_(-1.0, 1.0)


def _lufs(power: torch.Tensor) -> torch.Tensor:
    return -0.691 + 10 * power.clamp_min(1e-12).log10()


def _weighted(wav: torch.Tensor) -> torch.Tensor:
    """Apply K-weighting by overlap-save FFT."""
    kept = _SPECTRUM - _TAIL
    parts = F.pad(wav, (_TAIL, -len(wav) % kept)).unfold(0, _SPECTRUM, kept)
    filtered = []
    for some in parts.split(_TOGETHER):
        spectra = torch.fft.rfft(some.double()).mul_(_response())
        filtered.append(torch.fft.irfft(spectra, _SPECTRUM)[:, _TAIL:].float())
    return torch.cat(filtered).flatten()[: len(wav)]


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
