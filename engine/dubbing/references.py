"""Cut reference clips for voices from a film, using cues during which only one speaker is heard."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ..audio.levels import contrast, is_clipped, is_near_silent, spoken_part
from ..core.config import SAMPLE_RATE
from ..core.threads import one_thread
from ..prompt.chunking import estimate_seconds
from ..prompt.cues import CueTurns
from ..prompt.script import read_pauses
from ..prompt.tags import TAG_LIKE
from ..voice.clip import MIN_CLIP_SECONDS, prepare_clip

ENOUGH, MOST = 5.0, 15.0  # seconds of a reference
_LEAST = 0.7  # seconds of a cue: shorter ones are cries
_CLEAN = 20.0  # dB between speech and the background between words
_ALIKE = 5.0  # dB
_PACE = (0.4, 2.5)  # a cue's time over its text's estimate; beyond this they do not match
_MEETS = 0.1  # seconds that cues may overlap by mistake
_GAP = 0.2  # seconds of silence between two cues of a reference
_RATED = 60  # longest cues of a speaker that are rated


@dataclass(frozen=True)
class Reference:
    """A clip and its transcript. cues: numbers of the cues it was cut from."""

    wav: torch.Tensor  # [n] float32 at SAMPLE_RATE
    transcript: str
    cues: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return len(self.wav) / SAMPLE_RATE


@dataclass(frozen=True)
class _Excerpt:
    cue: CueTurns
    wav: torch.Tensor
    decibels: float  # between speech and the background between words


@one_thread()
def cut_references(
    cues: Sequence[CueTurns], film: torch.Tensor, rate: int, speakers: Collection[str]
) -> dict[str, Reference]:
    """Return a reference for each speaker with at least a second alone. film: [C, n] at `rate` Hz.

    The cleanest cues are taken, and of equally clean ones the longest, until there are 5 seconds. They are joined in
    the film's order, up to 15 seconds. Raises HiggsError for an unusual sample rate.
    """
    references = {}
    for speaker in speakers:
        clips = [clip for cue in _alone(cues, speaker) if (clip := _cut(cue, film, rate)) is not None]
        chosen, seconds = [], 0.0
        for clip in sorted(clips, key=lambda clip: (-(min(clip.decibels, _CLEAN) // _ALIKE), -len(clip.wav))):
            length = len(clip.wav) / SAMPLE_RATE
            if seconds < ENOUGH and seconds + length <= MOST:
                chosen.append(clip)
                seconds += length + _GAP
        if seconds - _GAP >= MIN_CLIP_SECONDS:
            references[speaker] = _joined(sorted(chosen, key=lambda clip: clip.cue.start))
    return references


def _alone(cues: Sequence[CueTurns], speaker: str) -> list[CueTurns]:
    """Return a speaker's longest cues that no other cue overlaps, and whose text fits their time."""
    alone, before = [], -math.inf
    for at, cue in enumerate(cues):
        seconds, following = cue.stop - cue.start, cues[at + 1].start if at + 1 < len(cues) else math.inf
        is_free = before <= cue.start + _MEETS and cue.stop <= following + _MEETS
        before = max(before, cue.stop)
        if cue.speakers == {speaker} and is_free and _LEAST <= seconds <= MOST:
            pace = seconds / (estimate_seconds(_words_of(cue)) or math.inf)
            if _PACE[0] <= pace <= _PACE[1]:
                alone.append(cue)
    return sorted(alone, key=lambda cue: cue.start - cue.stop)[:_RATED]


def _words_of(cue: CueTurns) -> str:
    """Return a cue's words, without tags and pauses."""
    return " ".join(TAG_LIKE.sub(" ", read_pauses(" ".join(turn.text for turn in cue.turns)).text).split())


def _cut(cue: CueTurns, film: torch.Tensor, rate: int) -> _Excerpt | None:
    """Return a cue's sound, or None if no speech can be heard in it."""
    part = film[:, round(cue.start * rate) : round(cue.stop * rate)]
    if part.shape[1] < _LEAST * rate or not bool(torch.isfinite(part).all()):
        return None
    wav = prepare_clip(part, rate)
    if is_near_silent(wav) or is_clipped(wav):
        return None
    first, last = spoken_part(wav) or (0, len(wav))
    return _Excerpt(cue, wav[first:last], contrast(wav))


def _joined(clips: Sequence[_Excerpt]) -> Reference:
    gap = torch.zeros(round(_GAP * SAMPLE_RATE))
    wavs = [part for clip in clips for part in (gap, clip.wav)][1:]
    return Reference(
        torch.cat(wavs), " ".join(_words_of(clip.cue) for clip in clips), tuple(clip.cue.number for clip in clips)
    )
