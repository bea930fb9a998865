"""The guard: is what a sequence said fit to be heard, and if not, with which seed is it said again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F

from ..audio import pcm
from ..audio.levels import is_clipped, is_near_silent, longest_silence
from ..core.sequence import Sequence

_BADNESS = {"limit": 4, "repeat": 3, "level": 3, "short": 3, "long": 2, "silence": 2}
_REPEAT_FRAMES, _REPEAT_SHARE, _MOST_LAG = 75, 0.9, 100  # 3 s of codes that are those of up to 4 s before
_STEP = 0x9E3779B97F4A7C15  # between the seeds of two takes: odd and large, so that no seed near by is met


class Takes:
    """The takes of one chunk: each is judged when it is whole, and the least bad one is kept.

    asked: the first one's sequence. retries: takes that may follow a bad one. judged: whether anything counts as bad.
    """

    def __init__(self, asked: Sequence, retries: int, judged: bool = True):
        self.asked = asked
        self._retries, self._judged = retries, judged
        self.flaws: list[tuple[str, ...]] = []  # names in result.FLAWS of what is wrong with each take so far
        self.kept: Sequence | None = None
        self.number = 1  # of the best take so far
        self._best, self._wav = asked, torch.empty(0)

    @property
    def is_only(self) -> bool:
        """True if the first take is kept whatever is wrong with it."""
        return self._retries == 0

    def add(self, sequence: Sequence, wav: torch.Tensor) -> Sequence | None:
        """A finished take and its sound [n] float32 on the host -> the next take, or None where one is kept now."""
        self.flaws.append(judge(sequence, wav) if self._judged else ())
        if len(self.flaws) == 1 or badness(self.flaws[-1]) < badness(self.flaws[self.number - 1]):
            self.number, self._best, self._wav = len(self.flaws), sequence, wav
        if self.flaws[-1] and len(self.flaws) <= self._retries:
            return another(self.asked, len(self.flaws))
        self.kept = self._best
        return None

    def take_wav(self) -> torch.Tensor:
        """The kept take's sound [n], which is given once."""
        wav, self._wav = self._wav, torch.empty(0)
        return wav


def judge(sequence: Sequence, wav: torch.Tensor) -> tuple[str, ...]:
    """Flaws of a finished sequence and its sound [n], as names in result.FLAWS.

    A cut is not a flaw where the text may have been going on.
    """
    shortest, longest, silence = sequence.bounds
    found = {
        "limit": not sequence.ended and sequence.num_frames >= sequence.expected,
        "long": sequence.num_frames > longest,
        "short": sequence.ended and sequence.num_frames < shortest,
        "repeat": repeats(sequence.codes),
        "silence": longest_silence(wav) > silence,
        "level": is_near_silent(wav) or is_clipped(wav),
    }
    return tuple(flaw for flaw, is_there in found.items() if is_there)


def badness(flaws: Iterable[str]) -> int:
    """How bad they are together."""
    return sum(_BADNESS[flaw] for flaw in flaws)


def another(sequence: Sequence, number: int) -> Sequence:
    """The same chunk with the seed of its take after `number` others; a function of the first take's seed alone."""
    params = replace(sequence.params, seed=(sequence.params.seed + number * _STEP) % (1 << 64))
    return replace(sequence, params=params, listened=False)


def repeats(codes: list[torch.Tensor]) -> bool:
    """True if the first codebook of codes [t, K] goes round in a circle, or stands still, for _REPEAT_FRAMES.

    Not known of samples.
    """
    if any(map(pcm.is_sound, codes)):
        return False
    first = torch.cat(codes)[:, 0] if codes else torch.empty(0, dtype=torch.int64)
    if len(first) <= _REPEAT_FRAMES:
        return False
    lags = min(_MOST_LAG, len(first) - _REPEAT_FRAMES)
    before = F.pad(first, (lags, 0), value=-1).unfold(0, len(first), 1)[:-1]  # [lags, T], the longest lag first
    same = F.pad((before == first).int().cumsum(1), (1, 0))
    return int((same[:, _REPEAT_FRAMES:] - same[:, :-_REPEAT_FRAMES]).max()) >= _REPEAT_SHARE * _REPEAT_FRAMES
