"""Finds clips in which a second person speaks, among clips of one voice, by pitch and timbre before and after.

The clips' own voice is the measure: how much it changes within clips, robustly estimated over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..core.config import SAMPLE_RATE

_WINDOW, _HOP = 1024, SAMPLE_RATE // 100  # samples
_BANDS, _COEFFICIENTS, _LOWEST, _HIGHEST = 25, 12, 100.0, 4000.0  # of mel spectra, in Hz up to what telephones carry
_PITCH = 65.0, 400.0  # Hz
_VOICED, _FIRST_PEAK, _QUIET, _FLOOR = 0.6, 0.9, 1e-2, 1e-5  # of the autocorrelation; relative to loud speech
_FEWEST, _MOST, _STEP = 100, 400, 10  # voiced frames on each side of a place, and between two places
_NOISE = 60  # frames, from which on a mean is as sure as speech itself is steady
# Standard deviations of a change within one voice: cepstral coefficients, and semitones. From 306 recordings of one
# speaker and 243 clips of the nine built-in voices. They count as much as _PRIOR clips.
_USUAL = (0.6, 0.87, 0.61, 0.49, 0.38, 0.39, 0.3, 0.26, 0.25, 0.26, 0.27, 0.3, 1.09)
_PRIOR, _KEPT, _MEDIAN = 10, 0.85, 12.34  # share of the changes that are the voice's own; median of chi-square, 13 free
# Standard deviations. Of 303 recordings of one speaker one is further away, with a monkey's cries, and of 153 clips of
# the nine voices, many of them joined, four; of 72 clips of two of the nine voices 66, of 27 mixed with hers 19.
_TWO = 8.5


def voice_changes(wav: torch.Tensor) -> torch.Tensor:
    """Return how pitch and timbre differ before and after each place in a clip [n] at SAMPLE_RATE: [places, 13].

    A clip with less than two seconds of voiced sound has no places.
    """
    voiced = _voiced(wav)
    changes = []
    for place in range(_FEWEST, len(voiced) - _FEWEST + 1, _STEP):
        before, after = voiced[max(0, place - _MOST) : place], voiced[place : place + _MOST]
        change = before.mean(0) - after.mean(0)
        change[-1] = before[:, -1].median() - after[:, -1].median()  # of an octave taken wrongly, a mean would show it
        frames = len(before) * len(after) / (len(before) + len(after))
        changes.append(change * math.sqrt(frames / (frames + _NOISE)))
    return torch.stack(changes) if changes else torch.zeros(0, _COEFFICIENTS + 1)


def with_two_voices(clips: Sequence[torch.Tensor]) -> list[bool]:
    """Return whether each clip, given its `voice_changes`, has a change that is too large for these clips' voice."""
    changes = torch.cat([torch.zeros(0, len(_USUAL)), *clips]).double()
    share = torch.cat([torch.zeros(0), *(torch.full((len(one),), 1 / max(1, len(one))) for one in clips)]).double()
    usual = torch.tensor(_USUAL, dtype=torch.float64).square().diag()
    inverse, own = torch.linalg.inv(usual), torch.ones(len(changes), dtype=torch.bool)
    for _ in range(5):
        distance = ((changes @ inverse) * changes).sum(1)
        own = distance <= distance.quantile(_KEPT) if len(changes) else own
        weight, prior = share[own], _PRIOR * float(share[own].sum() / share.sum()) if len(changes) else 1.0
        inverse = torch.linalg.inv(
            ((changes[own] * weight[:, None]).T @ changes[own] + prior * usual) / (weight.sum() + prior)
        )
        if len(changes):  # of the nearest ones alone, the spread is too small
            inverse *= _MEDIAN / ((changes @ inverse) * changes).sum(1).median()
    return [bool((((one.double() @ inverse) * one).sum(1) > _TWO**2).any()) for one in clips]


def _voiced(wav: torch.Tensor) -> torch.Tensor:
    """Return cepstral coefficients and pitch in semitones of a clip's voiced frames, [frames, 13]."""
    if len(wav) < _WINDOW:
        return torch.zeros(0, _COEFFICIENTS + 1)
    window = torch.hann_window(_WINDOW)
    frames = wav.unfold(0, _WINDOW, _HOP) * window
    power = torch.fft.rfft(frames, 2 * _WINDOW).abs().square()
    energy = frames.square().sum(1)
    loud = float(energy.quantile(0.95))
    correlation = torch.fft.irfft(power)[:, :_WINDOW] / (energy[:, None] + 1e-9 * loud)
    of_window = torch.fft.irfft(torch.fft.rfft(window, 2 * _WINDOW).abs().square())[:_WINDOW]
    shortest, longest = int(SAMPLE_RATE / _PITCH[1]), int(SAMPLE_RATE / _PITCH[0])
    lags = (correlation * (of_window[0] / of_window))[:, shortest:longest]
    highest = lags.max(1).values
    middle = lags[:, 1:-1]
    peaks = (middle >= lags[:, :-2]) & (middle >= lags[:, 2:]) & (middle >= _FIRST_PEAK * highest[:, None])
    is_voiced = (highest > _VOICED) & (energy > _QUIET * loud) & peaks.any(1)
    semitones = -12 * torch.log2(peaks.float().argmax(1) + 1.0 + shortest)
    bands = power[:, ::2] @ _mel().T
    cepstrum = torch.log(bands + _FLOOR * loud * _WINDOW) @ _cosines().T
    return torch.cat([cepstrum, semitones[:, None]], 1)[is_voiced]


def _mel() -> torch.Tensor:
    """Return triangular filters [bands, bins], even in mels."""
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (_LOWEST, _HIGHEST))
    edges = 700 * (10 ** (torch.linspace(low, high, _BANDS + 1) / 2595) - 1)
    bins = torch.arange(_WINDOW // 2 + 1) * (SAMPLE_RATE / _WINDOW)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_min(0)


def _cosines() -> torch.Tensor:
    """Return the discrete cosine transform of log bands, without its first row: [coefficients, bands]."""
    places = torch.arange(_BANDS - 1) + 0.5
    rows = [torch.cos(math.pi * order * places / (_BANDS - 1)) for order in range(1, _COEFFICIENTS + 1)]
    return torch.stack(rows) * math.sqrt(2 / (_BANDS - 1))
