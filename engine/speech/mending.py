"""Mending of a chunk: its bad sentences are spoken again by themselves, and their codes take the old ones' place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from ..audio.levels import silences, speech_level, spoken_part
from ..core.config import FRAME_RATE, FRAME_SAMPLES, SAMPLE_RATE
from ..core.sequence import Sequence
from ..prompt.chunking import estimate_seconds, sentence_texts
from ..voice.voice import Voice, voice_of_speech
from .verdict import Passage, Verdict

_REFERENCE = 10 * FRAME_RATE, FRAME_RATE  # most and least frames of good sentences as the voice of the others
_NEAR = 10 * FRAME_SAMPLES  # samples between a sentence's first frame and the pause before it
_SEAM = 10  # frames of sound before other codes that these may change: the codec sees so many ahead
_PAUSE = 8  # frames of silence kept before a sentence that was missing as a whole
_MOST_DB = 4.0  # between the level of a sentence and the chunk's
_MOST_PACE = 1.5  # times as fast or slow as the chunk
_UNLIKE = 0.5  # badness of another level or pace: another try, but better than what was wrong

Speak = Callable[[str, Voice | None, int], Sequence]  # (text, voice, number of the try) -> the sequence to decode


@dataclass
class Repair:
    """The tries at one passage. flaws: per try, those of the chunk itself first. kept: number of the best, from 1.

    first: number of the first try, which decides its seed. is_wanted: it is replaced even if nothing is wrong.
    """

    passage: Passage
    text: str
    flaws: list[tuple[str, ...]]
    badness: float
    first: int = 1
    is_wanted: bool = False
    kept: int = 1
    codes: torch.Tensor | None = None  # of the best try [t, K]; None: the chunk's own stay
    wav: torch.Tensor | None = None  # [n]


class Mending:
    """Speaks passages of a finished chunk again, each up to `retries` times: the bad ones, or those that are wanted.

    wav: the chunk's audio [n]. badness: of flaws. speak: builds the sequence of a try. wanted: sentence -> how often
    it is taken again.
    """

    def __init__(
        self,
        spoken: Sequence,
        wav: torch.Tensor,
        badness: Callable[[tuple[str, ...]], float],
        retries: int,
        speak: Speak,
        wanted: Mapping[int, int] = MappingProxyType({}),
    ):
        assert isinstance(spoken.verdict, Verdict)
        self._spoken, self._codes, self._wav, self._verdict = spoken, torch.cat(spoken.codes), wav, spoken.verdict
        self._badness, self._retries, self._speak = badness, retries, speak
        self._running: dict[Sequence, Repair] = {}
        self._texts = sentence_texts(spoken.text)
        self._level, self._pace = speech_level(wav), _pace(spoken.spoken_text or spoken.text, wav)
        self.repairs = [self._wanted(*item) for item in sorted(wanted.items())] if wanted else self._needed()
        self._bad = {number for repair in self.repairs for number in range(*repair.passage.sentences)}

    def _needed(self) -> list[Repair]:
        repairs = []
        for passage in self._verdict.passages:
            flaws = tuple(doubt.kind for doubt in passage.doubts)
            text = " ".join(self._texts[slice(*passage.sentences)])
            repairs.append(Repair(passage, text, [flaws], self._badness(flaws)))
        return repairs

    def _wanted(self, sentence: int, times: int) -> Repair:
        edges = [*self._verdict.starts, len(self._codes)]
        passage = Passage((sentence, sentence + 1), (edges[sentence], edges[sentence + 1]), ())
        return Repair(passage, self._texts[sentence], [()], math.inf, times * (self._retries + 1), is_wanted=True)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._running

    @property
    def is_done(self) -> bool:
        return not self._running

    @property
    def untouched(self) -> int:
        """Samples of the chunk that stay whatever becomes of its passages."""
        start = self._place(self.repairs[0].passage)[0] if self.repairs else 0
        return max(0, start - _SEAM) * FRAME_SAMPLES

    def begin(self) -> list[Sequence]:
        """Return the first try at each passage."""
        return [self._try(repair) for repair in self.repairs]

    def add(self, sequence: Sequence, wav: torch.Tensor, flaws: tuple[str, ...]) -> list[Sequence]:
        """Add a finished try with its audio [n] and flaws. Returns the next one if it is needed."""
        repair = self._running.pop(sequence)
        repair.flaws.append(flaws)
        badness = self._badness(flaws) + _UNLIKE * self._is_unlike(sequence.spoken_text or sequence.text, wav)
        if badness < repair.badness:
            repair.kept, repair.badness = len(repair.flaws), badness
            repair.codes, repair.wav = torch.cat(sequence.codes), wav
        return [self._try(repair)] if badness and len(repair.flaws) <= self._retries else []

    def spliced(self) -> Sequence | None:
        """Return the chunk with the best tries in their places, finished. None if nothing became better."""
        parts, at = [], 0
        for repair in self.repairs:
            if repair.codes is not None and repair.wav is not None:
                start, stop = self._place(repair.passage)
                parts += [self._codes[at:start], _trimmed(repair.codes, repair.wav, _PAUSE * (start == stop))]
                at = stop
        if not parts:
            return None
        sequence = replace(self._spoken)
        sequence.fill(torch.cat([*parts, self._codes[at:]]), self._spoken.ended)
        return sequence

    def _try(self, repair: Repair) -> Sequence:
        voice = self._spoken.voice if isinstance(self._spoken.voice, Voice) else self._reference(repair)
        sequence = self._speak(repair.text, voice, repair.first + len(repair.flaws) - 1)
        self._running[sequence] = repair
        return sequence

    def _reference(self, repair: Repair) -> Voice | None:
        """Return the longest run of good sentences as a voice, or None if there is none.

        One that is wanted depends on no other: each keeps its sound whatever else is taken again.
        """
        bad = range(*repair.passage.sentences) if repair.is_wanted else self._bad
        edges = [*self._verdict.starts, len(self._codes)]
        best, first = (0, 0), 0
        for number in range(len(self._texts)):
            if number in bad:
                first = number + 1
                continue
            while edges[number + 1] - edges[first] > _REFERENCE[0] and first < number:
                first += 1
            if edges[number + 1] - edges[first] > edges[best[1]] - edges[best[0]]:
                best = first, number + 1
        codes = self._codes[edges[best[0]] : edges[best[1]]]
        if len(codes) < _REFERENCE[1]:
            return None
        whole = len(codes) <= _REFERENCE[0]
        transcript = " ".join(self._texts[slice(*best)]) if whole else None
        return voice_of_speech(codes[: _REFERENCE[0]], transcript, "chunk")

    def _is_unlike(self, text: str, wav: torch.Tensor) -> bool:
        """True if a try has another level or pace than the chunk."""
        level, pace = speech_level(wav), _pace(text, wav)
        if not (level and pace and self._level and self._pace):
            return True
        return abs(20 * math.log10(level / self._level)) > _MOST_DB or abs(math.log(pace / self._pace)) > math.log(
            _MOST_PACE
        )

    def _place(self, passage: Passage) -> tuple[int, int]:
        """Return the frames to replace: from the end of the pause before a passage to the start of the one after it."""
        pauses = silences(self._wav)
        first, last = (_pause_at(pauses, frame * FRAME_SAMPLES) for frame in passage.frames)
        if first == last:  # nothing was said: in the middle of the pause
            middle = sum(first) // 2 // FRAME_SAMPLES
            return middle, middle
        start, stop = first[1] // FRAME_SAMPLES, -(-last[0] // FRAME_SAMPLES)
        return (start, stop) if start < stop else passage.frames


def _pause_at(pauses: list[tuple[int, int]], at: int) -> tuple[int, int]:
    """Return the longest pause (start, stop) around a sample, or none at the sample itself."""
    near = [pause for pause in pauses if pause[0] - _NEAR < at < pause[1] + _NEAR]
    return max(near, key=lambda pause: pause[1] - pause[0], default=(at, at))


def _trimmed(codes: torch.Tensor, wav: torch.Tensor, pause: int) -> torch.Tensor:
    """Return a try's codes without the silence around it, but for `pause` frames before it."""
    start, stop = spoken_part(wav) or (0, len(wav))
    return codes[max(0, start // FRAME_SAMPLES - pause) : -(-stop // FRAME_SAMPLES)]


def _pace(text: str, wav: torch.Tensor) -> float:
    """Return the seconds of sound per estimated second of a text. 0 if it cannot be told."""
    sound = len(wav) - sum(stop - start for start, stop in silences(wav))
    return sound / SAMPLE_RATE / max(0.1, estimate_seconds(text))
