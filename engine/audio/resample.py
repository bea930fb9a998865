"""Windowed-sinc resampling, equal to the default of torchaudio.functional.resample.

The published encoders used torchaudio, and a clip's codes depend on the last bits of its samples. Tests compare with
torchaudio's values. Algorithm: J. O. Smith, "Digital Audio Resampling", with a Hann window of six zero crossings.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..core.config import MOST_SOUND_RATE, SAMPLE_RATE
from ..core.errors import HiggsError

ZERO_CROSSINGS = 6  # of the sinc on each side
ROLLOFF = 0.99  # cutoff as a share of the lower Nyquist frequency
# Maximum taps of the filter bank. Rates without a useful common divisor need more, and would take gigabytes.
_MAX_TAPS = 20_000_000


def check_rate(rate: int, subject: str) -> None:
    """Raise HiggsError, naming `subject`, if resampling the rate would take too much memory."""
    if not _is_usual(rate, SAMPLE_RATE):
        raise HiggsError(f"{subject} has the unusual sample rate {rate}. Save it at 24000, 44100 or 48000 Hz first.")


def _is_usual(rate: int, to: int) -> bool:
    return 0 < rate <= MOST_SOUND_RATE and to > 0 and rate * to // math.gcd(rate, to) ** 2 <= _MAX_TAPS


def resample(wav: torch.Tensor, rate: int, to: int) -> torch.Tensor:
    """Resample wav [..., S] float32 from `rate` to `to` Hz: [..., ceil(S * to / rate)] on the same device.

    Raises HiggsError if the filters would take gigabytes.
    """
    if rate == to or not wav.shape[-1]:
        return wav
    if not _is_usual(rate, to):
        raise HiggsError(f"Audio cannot be resampled from {rate} to {to} Hz. Use 24000, 44100 or 48000 Hz.")
    divisor = math.gcd(rate, to)
    rate, to = rate // divisor, to // divisor
    filters, width = _filters(rate, to, wav.device)
    flat = F.pad(wav.reshape(-1, wav.shape[-1]), (width, width + rate))
    out = F.conv1d(flat[:, None], filters, stride=rate).transpose(1, 2).reshape(len(flat), -1)
    return out[:, : math.ceil(to * wav.shape[-1] / rate)].view(*wav.shape[:-1], -1)


def _filters(rate: int, to: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return (filters [to, 1, taps], input samples that a filter spans to each side). Filter i is output phase i."""
    cutoff = min(rate, to) * ROLLOFF
    width = math.ceil(ZERO_CROSSINGS * rate / cutoff)
    # float32 throughout, to match torchaudio's values.
    near = torch.arange(-width, width + rate, dtype=torch.float32, device=device)[None, None] / rate
    time = torch.arange(0, -to, -1, dtype=torch.float32, device=device)[:, None, None] / to + near
    time = (time * cutoff).clamp_(-ZERO_CROSSINGS, ZERO_CROSSINGS)
    window = torch.cos(time * math.pi / ZERO_CROSSINGS / 2) ** 2
    time = time * math.pi
    sinc = torch.where(time == 0, torch.ones_like(time), time.sin() / time)
    return sinc * (window * (cutoff / rate)), width
