"""Losses of a codec's sound: spectral distances, and critics that learn to tell it from real sound."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from .shards import SAMPLE_RATE

_WINDOWS = ((2048, 160), (1024, 96), (512, 64), (256, 40), (128, 20), (64, 10))  # samples, mel bands
_FLOOR = 1e-4  # spectral magnitude of silence; noise of that size lies 80 dB below full scale
_CRITIC_WINDOWS = (1024, 512, 256)
_PERIODS = (2, 3, 5, 7)
_SLOPE = 0.1
_COMPRESSED = 0.3  # exponent of the magnitudes that critics see
_QUIET = 1e-3  # power treated as zero: nothing audible is learned there, and the gradient is steep


def _spectrum(wav: torch.Tensor, window: torch.Tensor) -> torch.Tensor:  # [B, S] -> complex [B, F, T]
    size = len(window)
    return torch.stft(wav, size, size // 4, window=window, return_complex=True, pad_mode="constant") / window.norm()


class SpectralLoss(nn.Module):
    """Distance of two waveforms [B, S] in log mel spectra and in magnitudes, summed over windows of several lengths."""

    def __init__(self):
        super().__init__()
        from torchaudio.functional import melscale_fbanks  # here: the critics and the tests do without torchaudio

        for size, bands in _WINDOWS:
            filters = melscale_fbanks(size // 2 + 1, 0.0, SAMPLE_RATE / 2, bands, SAMPLE_RATE, "slaney", "slaney")
            self.register_buffer(f"window{size}", torch.hann_window(size))
            self.register_buffer(f"filters{size}", filters.T / filters.T.sum(1, keepdim=True).clamp_min(1e-8))

    def forward(self, made: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log mel distance, relative magnitude distance)."""
        mel = magnitude = made.new_zeros(())
        for size, _ in _WINDOWS:
            window, filters = getattr(self, f"window{size}"), getattr(self, f"filters{size}")
            a, b = (_spectrum(wav, window) for wav in (made, real))
            a, b = (torch.view_as_real(s).square().sum(-1).add(1e-10).sqrt() for s in (a, b))
            mel = mel + F.l1_loss(*((filters @ s).clamp_min(_FLOOR).log10() for s in (a, b)))
            magnitude = magnitude + (a - b).norm() / b.norm().clamp_min(1e-3)
        return mel, magnitude


def _conv(*shape, **settings) -> nn.Module:
    """Return a convolution that keeps scale. With torch's init, a critic is blind for its first thousand steps."""
    made = nn.Conv2d(*shape, **settings)
    nn.init.kaiming_normal_(made.weight, _SLOPE)
    nn.init.zeros_(made.bias)
    return weight_norm(made)


class _SpectrumCritic(nn.Module):
    """Critic of the complex spectrum at one window length.

    Magnitudes are compressed, or else the lowest harmonics drown all that tells made from real.
    """

    def __init__(self, size: int, width: int = 16):
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        layers = [_conv(2, width, (3, 9), padding=(1, 4))]
        for dilation in (1, 2, 4):
            layers.append(_conv(width, width, (3, 9), stride=(1, 2), dilation=(dilation, 1), padding=(dilation, 4)))
        self.layers = nn.ModuleList([*layers, _conv(width, width, (3, 3), padding=1)])
        self.last = _conv(width, 1, (3, 3), padding=1)

    def view(self, wav: torch.Tensor) -> torch.Tensor:  # [B, S] -> [B, 2, T, F]
        spectrum = torch.view_as_real(_spectrum(wav, self.window)).permute(0, 3, 2, 1)
        return spectrum * (spectrum.square().sum(1, keepdim=True) + _QUIET).pow((_COMPRESSED - 1) / 2)


class _PeriodCritic(nn.Module):
    """Critic of every n-th sample, side by side."""

    def __init__(self, period: int):
        super().__init__()
        self.period = period
        widths = (1, 16, 64, 128, 128)
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(_conv(a, b, (5, 1), stride=(3, 1), padding=(2, 0)) for a, b in pairs)
        self.last = _conv(widths[-1], 1, (3, 1), padding=(1, 0))

    def view(self, wav: torch.Tensor) -> torch.Tensor:  # [B, S] -> [B, 1, S / period, period]
        return F.pad(wav, (0, -wav.shape[1] % self.period)).unflatten(1, (-1, self.period))[:, None]


class Critics(nn.Module):
    """Several views of a waveform [B, S]. Each returns its layers' activations, its verdict last."""

    def __init__(self):
        super().__init__()
        views = [*(_SpectrumCritic(size) for size in _CRITIC_WINDOWS), *(_PeriodCritic(n) for n in _PERIODS)]
        self.views = nn.ModuleList(views)
        self.to(memory_format=torch.channels_last)

    def forward(self, wav: torch.Tensor) -> list[list[torch.Tensor]]:
        seen = []
        for critic in self.views:
            x = critic.view(wav.float()).contiguous(memory_format=torch.channels_last)
            states = []
            with torch.autocast(wav.device.type, torch.bfloat16, enabled=wav.is_cuda, cache_enabled=False):
                for layer in critic.layers:
                    x = F.leaky_relu(layer(x), _SLOPE)
                    states.append(x)
                states.append(critic.last(x))
            seen.append(states)
        return seen


def critic_loss(made: list[list[torch.Tensor]], real: list[list[torch.Tensor]]) -> torch.Tensor:
    """Return the critics' hinge loss: real above 1, made below -1."""
    pairs = zip(made, real, strict=True)
    return sum(F.relu(1 + m[-1].float()).mean() + F.relu(1 - r[-1].float()).mean() for m, r in pairs)


def codec_losses(made: list[list[torch.Tensor]], real: list[list[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codec's losses: (adversarial, feature matching in every layer)."""
    verdict = -sum(states[-1].float().mean() for states in made)
    alike = made[0][0].new_zeros((), dtype=torch.float32)
    for m, r in zip(made, real, strict=True):
        for a, b in zip(m[:-1], r[:-1], strict=True):
            alike = alike + F.l1_loss(a.float(), b.float()) / b.float().abs().mean().clamp_min(1e-3)
    return verdict, alike
