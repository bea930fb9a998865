"""Where speech is silent, and whether its level is sound. Levels are taken over hundredths of a second."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE

_STEP = SAMPLE_RATE // 100
_NOTHING = 10 ** (-50 / 20)  # of full scale: nobody speaks so softly
_BELOW_SPEECH = 10 ** (-35 / 20)  # of the speech: what a room makes
_SPEECH = 0.9  # quantile of the levels that is taken for that of speech
_BETWEEN = 0.1  # quantile that is taken for the level between words
_FULL, _CLIPPED = 0.999, 0.01  # share of samples at full scale
_EDGE = 5  # hundredths of a second that stay around what is heard: sounds begin and fade softly


def longest_silence(wav: torch.Tensor) -> float:
    """Seconds of the longest silence in speech [n], its end included."""
    return max((stop - start for start, stop in silences(wav)), default=0) / SAMPLE_RATE


def silences(wav: torch.Tensor) -> list[tuple[int, int]]:
    """The samples of speech [n] from where to where it is silent, in order."""
    levels = _levels(wav)
    if not len(levels):
        return []
    quiet = levels < max(_NOTHING, _BELOW_SPEECH * float(levels.quantile(_SPEECH)))
    edges = F.pad(quiet.int(), (1, 1)).diff()
    starts, stops = ((edges == step).nonzero().flatten() * _STEP for step in (1, -1))
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def is_near_silent(wav: torch.Tensor) -> bool:
    """Tell whether speech [n] is almost silent."""
    levels = _levels(wav)
    return not len(levels) or float(levels.quantile(_SPEECH)) < _NOTHING


def contrast(wav: torch.Tensor) -> float:
    """Decibels from what is heard between words in wav [n] to the speech; little where music or noise lies below."""
    levels = _levels(wav).clamp_min(_NOTHING)
    return 20 * math.log10(float(levels.quantile(_SPEECH) / levels.quantile(_BETWEEN))) if len(levels) else 0.0


def is_clipped(wav: torch.Tensor) -> bool:
    """Tell whether so much of speech [n] lies at full scale that it is heard."""
    if not len(wav):
        return False
    low, high = wav.aminmax()  # a tenth of the time that counting takes, and nearly all speech stays below
    return float(max(-low, high)) >= _FULL and float((wav.abs() >= _FULL).float().mean()) > _CLIPPED


def spoken_part(wav: torch.Tensor) -> tuple[int, int] | None:
    """The samples of wav [n] from where to where something is heard, with a little around; None where nothing is."""
    heard = (_levels(wav) >= _NOTHING).nonzero().flatten()
    if not len(heard):
        return None
    first, last = int(heard[0]), int(heard[-1]) + 1
    return max(0, first - _EDGE) * _STEP, min(len(wav), (last + _EDGE) * _STEP)


def _levels(wav: torch.Tensor) -> torch.Tensor:
    """Root mean square of each whole hundredth of a second."""
    return wav[: len(wav) // _STEP * _STEP].view(-1, _STEP).square().mean(1).sqrt()
