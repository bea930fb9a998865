"""Quality guard: scores each attempt and picks the seed for a retry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
import torch.nn.functional as F

from ..audio import pcm
from ..audio.levels import is_clipped, is_near_silent, longest_silence
from ..core.config import FRAME_SAMPLES
from ..core.sequence import Sequence
from ..voice.voice import Voice
from .mending import Mending, Repair
from .verdict import Verdict

_BADNESS = {"limit": 4, "repeat": 3, "level": 3, "short": 3, "long": 2, "silence": 2}  # of the whole
_BADNESS |= {"again": 3, "missing": 3, "added": 2, "cut": 1, "unsure": 1}  # of each place
_REPEAT_FRAMES, _REPEAT_SHARE, _MOST_LAG = 75, 0.9, 100  # 3 s of codes equal to those up to 4 s before
_STEP = 0x9E3779B97F4A7C15  # between the seeds of attempts; odd and large, so that no nearby seed is hit
_MOST_MENDED = 0.5  # share of a chunk's sentences; if more are bad, all of it is spoken again

SpeakPassage = Callable[[Sequence, str, Voice | None, int], Sequence]  # (chunk, text, voice, number) -> sequence


class Attempts:
    """Attempts at one chunk. Each is judged when complete, and the best one is kept.

    If few of its sentences are bad, these alone are spoken again and take their places.
    original: sequence of the first attempt. retries: maximum number of further ones, of the chunk and of each passage.
    speak: builds the sequence of a passage. judged: False accepts any. may_restart: False if somebody has heard the
    beginning and cannot hear it again.
    """

    def __init__(
        self, original: Sequence, retries: int, speak: SpeakPassage, judged: bool = True, may_restart: bool = True
    ):
        self.original = original
        self._retries, self._speak, self._judged, self._may_restart = retries, speak, judged, may_restart
        self.flaws: list[tuple[str, ...]] = []  # per attempt: keys of result.FLAWS
        self.kept: Sequence | None = None
        self.number = 1  # number of the best attempt so far
        self._best, self._wav = original, torch.empty(0)
        self.repairs: list[Repair] = []  # the tries at passages
        self._mending: Mending | None = None
        self._spliced: Sequence | None = None
        self._released = 0  # samples that a listener may have heard while passages are spoken again
        self.is_retaken = False  # sentences are spoken again because somebody wants that

    @property
    def is_only(self) -> bool:
        """True if the first attempt is kept in any case."""
        return self._retries == 0

    @property
    def is_mending(self) -> bool:
        """True while passages are spoken again, and the rest is kept."""
        return self._mending is not None

    def add(self, sequence: Sequence, wav: torch.Tensor) -> list[Sequence]:
        """Add a finished sequence with its audio [n] float32 on the host. Returns what to decode next.

        Nothing is left to decode if one is kept, or while tries at other passages are under way.
        """
        flaws = judge(sequence, wav) if self._judged else ()
        if self._mending is not None and sequence in self._mending:
            again = self._mending.add(sequence, wav, flaws)
            if again or not self._mending.is_done:
                return again
            self._spliced = self._mending.spliced()
            return self._end() if self._spliced is None else [self._spliced]
        if sequence is self._spliced:
            if self.is_retaken or badness(flaws) <= badness(self.flaws[self.number - 1]):
                if isinstance(self._best.verdict, Verdict) and not self.is_retaken:  # of a retake, nothing was heard
                    kept = max(self._best.verdict.fixed * FRAME_SAMPLES, self._released)
                    wav = torch.cat([self._wav[:kept], wav[kept:]])
                self.flaws[self.number - 1], self._best, self._wav = flaws, sequence, wav
            return self._end()
        self.flaws.append(flaws)
        if len(self.flaws) == 1 or badness(flaws) < badness(self.flaws[self.number - 1]):
            self.number, self._best, self._wav = len(self.flaws), sequence, wav
        if not flaws or not self._retries:
            return self._end()
        if self._may_restart and len(self.flaws) <= self._retries and _bad_share(self._best) > _MOST_MENDED:
            return [another(self.original, len(self.flaws))]
        return self._mend(self._retries) if _bad_share(self._best) < 1 else self._end()

    def release(self) -> torch.Tensor:
        """Return the samples [n] before the first passage, which stay from now on. Only while it is mending."""
        assert self._mending is not None
        self._released = self._released or self._mending.untouched
        return self._wav[: self._released]

    def _mend(self, retries: int, wanted: Mapping[int, int] = MappingProxyType({})) -> list[Sequence]:
        speak = functools.partial(self._speak, self._best)
        self._mending = Mending(self._best, self._wav, badness, retries, speak, wanted)
        return self._mending.begin()

    def _end(self) -> list[Sequence]:
        if self._mending is not None:
            self.repairs += [replace(repair, codes=None, wav=None) for repair in self._mending.repairs]
            self._mending = None
        self.kept = self._best
        return []

    def retake(self, wanted: Mapping[int, int]) -> list[Sequence]:
        """Take sentences of the kept attempt again. Returns what to decode, or nothing if it was not checked.

        wanted: sentence -> how often it is taken again.
        """
        if not isinstance(self._best.verdict, Verdict):
            return []
        self.is_retaken, self.kept = True, None
        return self._mend(max(1, self._retries), wanted)

    def take_wav(self) -> torch.Tensor:
        """Return the kept attempt's audio [n] and release it."""
        wav, self._wav = self._wav, torch.empty(0)
        return wav


def _bad_share(sequence: Sequence) -> float:
    """Return the share of a chunk's sentences that can be spoken again by themselves. 1 if nobody can tell."""
    verdict = sequence.verdict
    if not isinstance(verdict, Verdict) or not verdict.passages:
        return 1.0
    bad = sum(last - first for first, last in (passage.sentences for passage in verdict.passages))
    return bad / len(verdict.starts)


def judge(sequence: Sequence, wav: torch.Tensor) -> tuple[str, ...]:
    """Return the flaws of a finished sequence and its audio [n]: keys of result.FLAWS, one for each place in doubt.

    A cut is not a flaw if the text may not have been finished.
    """
    shortest, longest, silence = sequence.bounds
    faults = {
        "limit": not sequence.ended and sequence.num_frames >= sequence.expected,
        "long": sequence.num_frames > longest,
        "short": sequence.ended and sequence.num_frames < shortest,
        "repeat": repeats(sequence.codes),
        "silence": longest_silence(wav) > silence,
        "level": is_near_silent(wav) or is_clipped(wav),
    }
    doubts = sequence.verdict.doubts if isinstance(sequence.verdict, Verdict) else ()
    return *(flaw for flaw, is_there in faults.items() if is_there), *(doubt.kind for doubt in doubts)


def badness(flaws: Iterable[str]) -> int:
    return sum(_BADNESS[flaw] for flaw in flaws)


def another(sequence: Sequence, number: int) -> Sequence:
    """Return the same chunk with the seed of its retry `number`."""
    params = replace(sequence.params, seed=seed_of(sequence, number))
    return replace(sequence, params=params, listened=False)


def seed_of(sequence: Sequence, number: int) -> int:
    """Return the seed of retry `number`, which depends only on the first attempt's seed."""
    return (sequence.params.seed + number * _STEP) % (1 << 64)


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
