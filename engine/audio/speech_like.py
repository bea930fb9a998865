"""Tells clips without speech, such as held chords, tones and noise, by how little their spectrum changes."""

from __future__ import annotations

import math

import torch

from ..core.config import SAMPLE_RATE

_WINDOW, _HOP = 1024, SAMPLE_RATE // 80  # samples of a spectrum, and between two
_STEP = 8  # spectra in a tenth of a second, which is about a sound of speech
_BANDS, _LOWEST, _HIGHEST = 24, 100.0, 8000.0  # Hz
_QUIET = 1e-3  # energy of pauses, relative to speech
_FLOOR = 1e-6
_CHANGE = 3.0  # dB, averaged over the bands
# Share of tenths of a second with such a change. Speech: 0.96 and more, with as much noise as speech 0.78. Slow
# chords and melodies, tones and noise: 0.6 and less. Drums and fast plucked notes change as much as speech.
_SPEECH = 0.68


def is_speech_like(wav: torch.Tensor) -> bool:
    """True if the spectrum of wav [n] at SAMPLE_RATE changes as fast as that of speech. Needs a second or more."""
    spectra = torch.stft(wav, _WINDOW, _HOP, window=torch.hann_window(_WINDOW), center=False, return_complex=True)
    edges = torch.logspace(math.log10(_LOWEST), math.log10(_HIGHEST), _BANDS + 1) * (_WINDOW / SAMPLE_RATE)
    low, high = edges.round().long().tolist()[:-1], edges.round().long().tolist()[1:]
    power = spectra.abs().square()
    bands = torch.empty(_BANDS, power.shape[1])
    for band, first, last in zip(bands, low, high, strict=True):  # a comprehension's frame would keep `power` in errors
        torch.sum(power[first : max(last, first + 1)], 0, out=band)
    energy = bands.sum(0)
    loud = float(energy.quantile(0.9))
    shapes = 10 * torch.log10(bands + _FLOOR * loud)
    shapes = shapes - shapes.mean(0)
    changes = (shapes[:, _STEP:] - shapes[:, :-_STEP]).abs().mean(0)
    is_loud = energy > _QUIET * loud
    changes = changes[is_loud[_STEP:] & is_loud[:-_STEP]]
    return not len(changes) or float((changes > _CHANGE).float().mean()) > _SPEECH
