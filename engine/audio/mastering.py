"""Finished sound at a loudness target, its true peaks limited: BS.1770 loudness, or the RMS that ACX asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE
from .loudness import TARGET as EVEN
from .loudness import integrated_loudness
from .resample import resample


@dataclass(frozen=True)
class Target:
    """Loudness and peak of a delivery format. level: LUFS, or dB of RMS if `is_rms`. peak: most dB of true peak."""

    level: float
    peak: float = -1.0
    is_rms: bool = False


AS_IS, FRESH_TARGET = "as is", f"{EVEN:.0f} LUFS"  # the latter where nothing is chosen
TARGETS: dict[str, Target | None] = {
    AS_IS: None,
    **{f"{level:.0f} LUFS": Target(level) for level in (-16.0, -19.0, EVEN, -23.0)},
    "ACX": Target(-20.0, peak=-3.2, is_rms=True),  # between -23 and -18 dB, peaks below -3 dB
}
_MOST_GAIN = 30.0  # dB: more would only raise noise
_ROUNDS, _CLOSE = 6, 0.05  # of gain and limiting; dB from the target
_OVERSAMPLED = 4  # BS.1770-4, annex 2
_PIECE = 1 << 20  # samples whose peaks are found at a time
_MARGIN = 64  # samples that resampling reads beyond a piece
_STEP = 1000  # gains of the limiter per second
_AHEAD = 10  # steps by which it begins before a peak, and ends after it
_FLOOR_WINDOW = 0.5  # seconds over which ACX measures the noise floor


def master(wav: torch.Tensor, rate: int, target: Target) -> tuple[torch.Tensor, float]:
    """Bring sound [C, n] at `rate` Hz to a target: one gain for all of it, then a limiter. Silence stays as it is.

    Returns (sound [C, n] float32, its level in LUFS or dB of RMS; -inf for silence).
    """
    wav, gain = wav.float(), 0.0
    out = _limit(wav, rate, target.peak)
    level = _level(out, rate, target)
    for _ in range(_ROUNDS):
        if math.isinf(level) or abs(target.level - level) < _CLOSE:
            break
        gain = min(gain + target.level - level, _MOST_GAIN)
        out = _limit(wav * 10 ** (gain / 20), rate, target.peak)
        level = _level(out, rate, target)
    return out, level


def true_peak(wav: torch.Tensor, rate: int) -> float:
    """Return the true peak of sound [C, n] in dB of full scale; -inf for silence."""
    peaks = _peaks(wav, rate)
    return _decibels(float(peaks.max())) if len(peaks) else -math.inf


def noise_floor(wav: torch.Tensor, rate: int) -> float:
    """Return the RMS, in dB, of the quietest half second of sound [C, n]. Shorter sound counts as a whole."""
    size = int(_FLOOR_WINDOW * rate)
    power = wav.float().square().mean(0)
    if not len(power):
        return -math.inf
    windows = power.unfold(0, size, size // 5).mean(1) if len(power) >= size else power.mean()[None]
    return _decibels(math.sqrt(float(windows.min())))


def _level(wav: torch.Tensor, rate: int, target: Target) -> float:
    if not wav.numel():
        return -math.inf
    if target.is_rms:
        return _decibels(math.sqrt(float(wav.double().square().mean())))
    return integrated_loudness(resample(wav, rate, SAMPLE_RATE))


def _limit(wav: torch.Tensor, rate: int, peak: float) -> torch.Tensor:
    """Keep true peaks of sound [C, n] at or below `peak` dB by a gain that begins before each and ends after it."""
    needed = (10 ** (peak / 20) / _peaks(wav, rate).clamp_min(1e-9)).clamp_max(1.0)
    if not len(needed) or float(needed.min()) >= 1.0:
        return wav
    width = 2 * _AHEAD + 1
    least = -F.max_pool1d(-needed[None, None], width, stride=1, padding=_AHEAD)
    # Each mean is over gains that hold for the step and its neighbours, so no peak escapes between them.
    shape = torch.hann_window(width - 4, periodic=False, dtype=wav.dtype)
    around = F.pad(least, (_AHEAD - 2, _AHEAD - 2), mode="replicate")
    smooth = F.conv1d(around, (shape / shape.sum())[None, None])
    gains = F.interpolate(smooth, size=len(needed) * (rate // _STEP), mode="linear")[0, 0, : wav.shape[1]]
    return wav * gains


def _peaks(wav: torch.Tensor, rate: int) -> torch.Tensor:
    """Return the true peak of each step of sound [C, n], over all channels."""
    step = rate // _STEP
    loud = wav.float().abs().amax(0)
    loud = F.pad(loud, (0, -len(loud) % step))
    for start in range(0, wav.shape[1], _PIECE):
        part = wav[:, max(0, start - _MARGIN) : start + _PIECE + _MARGIN].float()
        between = resample(part, rate, _OVERSAMPLED * rate).abs().amax(0)
        between = between.view(-1, _OVERSAMPLED).amax(1)[min(start, _MARGIN) :][:_PIECE]
        span = slice(start, start + len(between))
        loud[span] = torch.maximum(loud[span], between)
    return loud.view(-1, step).amax(1)


def _decibels(amplitude: float) -> float:
    return 20 * math.log10(amplitude) if amplitude > 0 else -math.inf
