"""Reverberation of speech, estimated from how fast its level falls."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE

_STEP = SAMPLE_RATE // 100
_SPAN = 8  # hundredths of a second over which a slope is measured
_SMOOTH = 3  # hundredths of a second; evens out the beating of an echo's tail
_SPEECH, _RANGE = 0.9, 20.0  # quantile of levels taken as that of speech; dB below it in which a fall begins
_FASTEST = 0.1  # quantile of the slopes. A room sets a limit to them, and a voice comes near it at stops and pauses
_FEWEST = 10  # slopes
_LEAST = 1e-10  # power


def decay_seconds(wav: torch.Tensor) -> float:
    """Return the seconds in which speech [n] at SAMPLE_RATE falls by 60 dB where it falls fastest. 0 if unknown.

    Dry speech has 0.1 to 0.25 s, up to 0.4 with noise 15 dB below it. In a room whose sound is as loud as the direct
    one it is near the room's reverberation time up to 0.5 s; beyond that it grows more slowly.
    """
    powers = wav[: len(wav) // _STEP * _STEP].view(-1, _STEP).square().mean(1)
    if len(powers) < _SPAN + _SMOOTH:
        return 0.0
    levels = 10 * F.avg_pool1d(powers[None], _SMOOTH, 1)[0].clamp_min(_LEAST).log10()
    spans = levels.unfold(0, _SPAN, 1)
    times = (torch.arange(_SPAN) - (_SPAN - 1) / 2) * _STEP / SAMPLE_RATE
    slopes = spans @ times / times.square().sum()  # dB per second
    falls = slopes[(spans[:, 0] > float(levels.quantile(_SPEECH)) - _RANGE) & (slopes < 0)]
    return -60 / float(falls.quantile(_FASTEST)) if len(falls) >= _FEWEST else 0.0
