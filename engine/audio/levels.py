"""Silences and levels of speech, measured over hundredths of a second."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE

_STEP = SAMPLE_RATE // 100
_NOTHING = 10 ** (-50 / 20)  # relative to full scale; below any speech
_BELOW_SPEECH = 10 ** (-35 / 20)  # relative to the speech; room noise
_SPEECH = 0.9  # quantile of levels taken as that of speech
_BETWEEN = 0.1  # quantile of levels taken as that between words
_FULL, _CLIPPED = 0.999, 0.01  # share of samples at full scale
_EDGE = 5  # hundredths of a second kept around audible parts, for soft onsets and decays


def longest_silence(wav: torch.Tensor) -> float:
    """Return the seconds of the longest silence in speech [n], including its end."""
    return max((stop - start for start, stop in silences(wav)), default=0) / SAMPLE_RATE


def silences(wav: torch.Tensor) -> list[tuple[int, int]]:
    """Return (start, stop) samples of the silences in speech [n], in order."""
    levels = _levels(wav)
    if not len(levels):
        return []
    quiet = levels < max(_NOTHING, _BELOW_SPEECH * float(levels.quantile(_SPEECH)))
    edges = F.pad(quiet.int(), (1, 1)).diff()
    starts, stops = ((edges == step).nonzero().flatten() * _STEP for step in (1, -1))
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def speech_level(wav: torch.Tensor) -> float:
    """Return the level of the louder parts of speech [n], relative to full scale. 0 if it is too short to tell."""
    levels = _levels(wav)
    return float(levels.quantile(_SPEECH)) if len(levels) else 0.0


def is_near_silent(wav: torch.Tensor) -> bool:
    return speech_level(wav) < _NOTHING


def contrast(wav: torch.Tensor) -> float:
    """Return the level of speech above that between words in wav [n], in dB. Low with background music or noise."""
    levels = _levels(wav).clamp_min(_NOTHING)
    return 20 * math.log10(float(levels.quantile(_SPEECH) / levels.quantile(_BETWEEN))) if len(levels) else 0.0


def is_clipped(wav: torch.Tensor) -> bool:
    if not len(wav):
        return False
    low, high = wav.aminmax()  # ten times faster than counting, and nearly all speech stays below
    return float(max(-low, high)) >= _FULL and float((wav.abs() >= _FULL).float().mean()) > _CLIPPED


def spoken_part(wav: torch.Tensor) -> tuple[int, int] | None:
    """Return (start, stop) samples of the audible part of wav [n], with a small margin. None if it is silent."""
    audible = (_levels(wav) >= _NOTHING).nonzero().flatten()
    if not len(audible):
        return None
    first, last = int(audible[0]), int(audible[-1]) + 1
    return max(0, first - _EDGE) * _STEP, min(len(wav), (last + _EDGE) * _STEP)


def _levels(wav: torch.Tensor) -> torch.Tensor:
    """Return the RMS of each full hundredth of a second."""
    return wav[: len(wav) // _STEP * _STEP].view(-1, _STEP).square().mean(1).sqrt()
