"""Quality guard: scores each attempt and picks the seed for a retry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F

from ..audio import pcm
from ..audio.levels import is_clipped, is_near_silent, longest_silence
from ..core.sequence import Sequence

_BADNESS = {"limit": 4, "repeat": 3, "level": 3, "short": 3, "long": 2, "silence": 2}
_REPEAT_FRAMES, _REPEAT_SHARE, _MOST_LAG = 75, 0.9, 100  # 3 s of codes equal to those up to 4 s before
_STEP = 0x9E3779B97F4A7C15  # between the seeds of attempts; odd and large, so that no nearby seed is hit


class Attempts:
    """Attempts at one chunk. Each is judged when complete, and the best one is kept.

    asked: sequence of the first attempt. retries: maximum number of further ones. judged: False accepts any.
    """

    def __init__(self, asked: Sequence, retries: int, judged: bool = True):
        self.asked = asked
        self._retries, self._judged = retries, judged
        self.flaws: list[tuple[str, ...]] = []  # per attempt: keys of result.FLAWS
        self.kept: Sequence | None = None
        self.number = 1  # number of the best attempt so far
        self._best, self._wav = asked, torch.empty(0)

    @property
    def is_only(self) -> bool:
        """True if the first attempt is kept in any case."""
        return self._retries == 0

    def add(self, sequence: Sequence, wav: torch.Tensor) -> Sequence | None:
        """Add a finished attempt with its audio [n] float32 on the host. Returns the next, or None if one is kept."""
        self.flaws.append(judge(sequence, wav) if self._judged else ())
        if len(self.flaws) == 1 or badness(self.flaws[-1]) < badness(self.flaws[self.number - 1]):
            self.number, self._best, self._wav = len(self.flaws), sequence, wav
        if self.flaws[-1] and len(self.flaws) <= self._retries:
            return another(self.asked, len(self.flaws))
        self.kept = self._best
        return None

    def take_wav(self) -> torch.Tensor:
        """Return the kept attempt's audio [n] and release it."""
        wav, self._wav = self._wav, torch.empty(0)
        return wav


def judge(sequence: Sequence, wav: torch.Tensor) -> tuple[str, ...]:
    """Return the flaws of a finished sequence and its audio [n]: keys of result.FLAWS.

    A cut is not a flaw if the text may not have been finished.
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
    """Return the sum of the flaws' weights."""
    return sum(_BADNESS[flaw] for flaw in flaws)


def another(sequence: Sequence, number: int) -> Sequence:
    """Return the same chunk with the seed of its retry `number`, which depends only on the first attempt's seed."""
    params = replace(sequence.params, seed=(sequence.params.seed + number * _STEP) % (1 << 64))
    return replace(sequence, params=params, listened=False)


def repeats(codes: list[torch.Tensor]) -> bool:
    """True if the first codebook of codes [t, K] loops or stands still for _REPEAT_FRAMES.

    Always False for PCM frames.
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
