"""Mix timed speech into one waveform, over a bed that is lowered during speech."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..audio.bed import FALL, RISE, stretches
from ..audio.resample import resample
from ..core.config import SAMPLE_RATE

Sounds = Sequence[tuple[float, torch.Tensor]]  # (start in seconds, speech [n] at SAMPLE_RATE)


def mix_speech(
    sounds: Sounds, seconds: float, bed: torch.Tensor | None = None, rate: int = SAMPLE_RATE, lower_bed: float = 0.0
) -> torch.Tensor:
    """Mix speech, for at least `seconds`, into [1, n] at SAMPLE_RATE, or [C, n] at the bed's rate.

    bed: [C, n] at `rate` Hz, not modified. lower_bed: dB by which it is lowered during speech.
    """
    ends = [start + len(wav) / SAMPLE_RATE for start, wav in sounds]
    size = max(round(max([seconds, *ends]) * rate), 0 if bed is None else bed.shape[1])
    out = torch.zeros(1 if bed is None else bed.shape[0], size)
    if bed is not None:
        out[:, : bed.shape[1]] = bed
        for start, end in stretches(zip([start for start, _ in sounds], ends, strict=True)):
            _lower(out, round(start * rate), round(end * rate), rate, 10 ** (-lower_bed / 20))
    for start, wav in sounds:
        wav = resample(wav, SAMPLE_RATE, rate)
        at = round(start * rate)
        out[:, at : at + len(wav)] += wav[: size - at]
    return out.clamp_(-1.0, 1.0)


def _lower(out: torch.Tensor, start: int, end: int, rate: int, gain: float) -> None:
    """Scale sound [C, n] by `gain` from start to end, in place, with a ramp before and after."""
    out[:, start:end] *= gain
    fall, rise = round(FALL * rate), round(RISE * rate)
    first = max(0, start - fall)
    out[:, first:start] *= torch.linspace(1.0, gain, fall + 2)[1:-1][fall - (start - first) :]
    after = out[:, end : end + rise]
    after *= torch.linspace(gain, 1.0, rise + 2)[1:-1][: after.shape[1]]
