"""Finished sound at a loudness target, its true peaks limited: BS.1770 loudness, or the RMS that ACX asks for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..core.config import SAMPLE_RATE
from .loudness import HOPS, HopPowers, KPowers, gated_loudness
from .loudness import TARGET as EVEN
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
MOST_FLOOR = -60.0  # dB: ACX refuses more noise
_MOST_GAIN = 30.0  # dB: more would only raise noise
_ROUNDS, _CLOSE = 6, 0.05  # of gain and limiting; dB from the target
_OVERSAMPLED = 4  # BS.1770-4, annex 2
_PIECE = 1 << 20  # about as many samples are worked on at a time
_MARGIN = 128  # samples that resampling reads beyond a piece, at least
_STEP = 1000  # gains of the limiter per second
_AHEAD = 10  # steps by which it begins before a peak, and ends after it
_FLOOR_HOPS = HOPS // 2  # half a second, over which ACX measures the noise floor

Read = Callable[[int, int], torch.Tensor]


class Mastered:
    """Sound brought to a target: one gain for all of it, then a limiter. Silence stays as it is.

    read(start, stop): samples [C, n] float32, called for the same ones several times. size: samples. rate: Hz. No more
    than a piece of about a million samples is held. level: of the result, in LUFS or dB of RMS; -inf for silence.
    str(): level, true peak and, for ACX, the noise floor, for users.
    """

    def __init__(self, read: Read, size: int, rate: int, target: Target):
        self._read, self._size, self._rate, self._target = read, size, rate, target
        self._step, self._gain = _step(rate), 0.0
        peaks = torch.cat([torch.empty(0), *(part.peaks for part in _parts(read, size, rate))])
        self._limit(peaks)
        for _ in range(_ROUNDS):
            if math.isinf(self.level) or abs(target.level - self.level) < _CLOSE:
                break
            self._gain = min(self._gain + target.level - self.level, _MOST_GAIN)
            self._limit(peaks)

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the result [C, n], piece by piece."""
        size = self._step * max(1, _PIECE // self._step)
        yield from (self._result(start, min(start + size, self._size)) for start in range(0, self._size, size))

    @functools.cached_property
    def peak(self) -> float:
        """True peak of the result, in dB of full scale; -inf for silence."""
        parts = _parts(self._result, self._size, self._rate)
        return _decibels(max((float(part.peaks.max()) for part in parts), default=0.0))

    @functools.cached_property
    def floor(self) -> float:
        """RMS, in dB, of the quietest half second of the result. Shorter sound counts as a whole."""
        powers = HopPowers(self._rate)
        for piece in self.pieces():
            powers.add(piece.square().mean(0))
        return _decibels(math.sqrt(float(powers.windows(_FLOOR_HOPS).min())))

    def __str__(self) -> str:
        unit = "dB RMS" if self._target.is_rms else "LUFS"
        text = f"Loudness: {self.level:.1f} {unit}, true peak {self.peak:.1f} dB"
        if not self._target.is_rms:
            return f"{text}."
        floor = "digital silence" if math.isinf(self.floor) else f"{self.floor:.0f} dB"
        above = "" if self.floor <= MOST_FLOOR else f", which is above the {MOST_FLOOR:.0f} dB that ACX allows"
        return f"{text}, noise floor {floor}{above}."

    def _limit(self, peaks: torch.Tensor):
        """Find the limiter's gains for the present gain, from the true peak of each step, and the level they give."""
        self._gains = _gains(peaks * 10 ** (self._gain / 20), self._target.peak)
        self.level = self._level()

    def _level(self) -> float:
        if self._target.is_rms:
            powers = HopPowers(self._rate)
            for piece in self.pieces():
                powers.add(piece.square().mean(0))
            return _decibels(math.sqrt(powers.mean))
        weighted = KPowers()
        for part in _parts(self._result, self._size, self._rate):
            weighted.add(part.resampled(SAMPLE_RATE))
        return gated_loudness(weighted.blocks())

    def _result(self, start: int, stop: int) -> torch.Tensor:
        """Return samples of the result. start: a multiple of the limiter's step."""
        wav = self._read(start, stop).float()
        if self._gain:
            wav = wav * 10 ** (self._gain / 20)
        first, last = start // self._step, -(-stop // self._step)
        own = self._gains[max(0, first - 1) : last + 1]
        if not len(own) or float(own.min()) >= 1.0:
            return wav
        around = F.pad(own[None, None], (int(first == 0), int(last == len(self._gains))), mode="replicate")
        gains = F.interpolate(around, size=around.shape[-1] * self._step, mode="linear")[0, 0, self._step :]
        return wav * gains[: wav.shape[1]]


def master(wav: torch.Tensor, rate: int, target: Target) -> tuple[torch.Tensor, Mastered]:
    """Bring sound [C, n] at `rate` Hz to a target. Returns the sound [C, n] float32, and what was done."""
    mastered = Mastered(lambda start, stop: wav[:, start:stop], wav.shape[1], rate, target)
    return torch.cat([wav[:, :0].float(), *mastered.pieces()], 1), mastered


def _gains(peaks: torch.Tensor, most: float) -> torch.Tensor:
    """Return a gain for each step, from its true peak, that begins before each peak above `most` dB and ends after."""
    needed = (10 ** (most / 20) / peaks.clamp_min(1e-9)).clamp_max(1.0)
    if not len(needed) or float(needed.min()) >= 1.0:
        return torch.ones(len(needed))
    width = 2 * _AHEAD + 1
    least = -F.max_pool1d(-needed[None, None], width, stride=1, padding=_AHEAD)
    # Each mean is over gains that hold for the step and its neighbours, so no peak escapes between them.
    shape = torch.hann_window(width - 4, periodic=False)
    around = F.pad(least, (_AHEAD - 2, _AHEAD - 2), mode="replicate")
    return F.conv1d(around, (shape / shape.sum())[None, None])[0, 0]


class _Span(NamedTuple):
    """Samples first..last of `wav` [C, n], at `rate` Hz, and around them what resampling reads."""

    wav: torch.Tensor
    first: int
    last: int
    rate: int

    def resampled(self, to: int) -> torch.Tensor:
        """Return the part [C, n] at another rate, without what is around it."""
        first, last = (-(-at * to // self.rate) for at in (self.first, self.last))
        return resample(self.wav, self.rate, to)[:, first:last]

    @property
    def peaks(self) -> torch.Tensor:
        """True peak of each step, over all channels."""
        step = _step(self.rate)
        between = self.resampled(_OVERSAMPLED * self.rate).abs().amax(0).view(-1, _OVERSAMPLED).amax(1)
        loud = torch.maximum(self.wav[:, self.first : self.last].abs().amax(0), between)
        return F.pad(loud, (0, -len(loud) % step)).view(-1, step).amax(1)


def _parts(read: Read, size: int, rate: int) -> Iterator[_Span]:
    unit = math.lcm(_step(rate), rate // math.gcd(rate, SAMPLE_RATE))  # samples that resampling turns into whole ones
    piece, margin = (unit * -(-least // unit) for least in (_PIECE, _MARGIN))
    for start in range(0, size, piece):
        before, stop = min(start, margin), min(start + piece, size)
        yield _Span(read(start - before, min(stop + margin, size)).float(), before, before + stop - start, rate)


def _step(rate: int) -> int:
    """Return the samples of a step of the limiter."""
    return max(1, rate // _STEP)


def _decibels(amplitude: float) -> float:
    return 20 * math.log10(amplitude) if amplitude > 0 else -math.inf
