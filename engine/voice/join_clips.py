"""Join the best parts of several clips of one speaker to a reference clip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from ..audio.levels import contrast, silences, spoken_part
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from .clip import MAX_CLIP_SECONDS, MIN_CLIP_SECONDS, SILENCE_PEAK, Wave, check_clip, prepare_clip
from .reference import NOISY, faults, gain_of, sound_checks

_LONGEST = 600.0  # seconds of a recording without a transcript
_WINDOW, _PAUSE = 10.0, 0.15  # seconds between two cuts of such a recording, about, and of the silence they need
_GAP = 0.2  # seconds of silence between two parts
_NOISIER = 10.0  # dB of speech above its background less than the best part has
_CLEAN, _ALIKE = 25.0, 5.0  # dB that are as good as more, and that make no difference
_FAR = 6.0  # dB of gain

Misfit = Callable[[str, float], str]


class NamedClip(NamedTuple):
    """A clip [C, S] or [S] of a speaker, and what users call it. transcript: empty if unknown."""

    wav: Wave
    rate: int
    transcript: str
    name: str


class JoinedClips(NamedTuple):
    """A reference clip [n] at SAMPLE_RATE. taken: its parts, in words. doubts: why it has no part of other clips."""

    wav: torch.Tensor
    transcript: str
    taken: str
    doubts: tuple[str, ...]


@dataclass(eq=False)
class _Candidate:
    clip: str  # its name
    span: str  # of the clip, in words; empty for all of it
    wav: torch.Tensor  # [n] at SAMPLE_RATE and LOUDNESS
    transcript: str
    decibels: float  # between speech and its background
    gain: float  # dB by which the clip was brought to LOUDNESS
    faults: list[str]
    is_taken: bool = False


def join_clips(clips: Iterable[NamedClip], misfit: Misfit) -> JoinedClips:
    """Return the best parts of clips of one speaker, in their order: at most 30 seconds, all at one level.

    A clip with a transcript is one part, others are cut at pauses. Overdriven and noisy parts, those without speech and
    those whose transcripts cannot fit are left out. If any of the rest has a transcript, only such are taken: the
    cleanest, then those that need little gain, then the longest. If all are faulty, the best is taken alone.

    misfit(transcript, seconds): why a clip of that length cannot have that transcript, or "".

    Raises HiggsError that names the clip if one cannot become a voice at all.
    """
    parts = [part for clip in clips for part in _parts(clip, misfit)]
    best = max(part.decibels for part in parts)
    for part in parts:
        if NOISY <= part.decibels < best - _NOISIER:
            part.faults.append(f"Its speech is only {round(part.decibels)} dB above the background.")
    doubts = []
    if not (good := sorted((part for part in parts if not part.faults), key=_rank)):
        good = [min(parts, key=lambda part: (len(part.faults), _rank(part)))]
        doubts.append(f"No clip is without fault, so only {good[0].clip} was used. {' '.join(good[0].faults)}")
    room = MAX_CLIP_SECONDS
    for part in good:
        seconds = len(part.wav) / SAMPLE_RATE
        if good[0].transcript and not part.transcript:
            part.faults.append("It has no transcript, but others have.")
        elif seconds > room:
            part.faults.append(f"Better parts fill the {MAX_CLIP_SECONDS:.0f} s.")
        else:
            part.is_taken = True
            room -= seconds + _GAP
    taken = [part for part in parts if part.is_taken]
    for name in dict.fromkeys(part.clip for part in parts):
        own = [part for part in parts if part.clip == name]
        if not any(part.is_taken for part in own):
            doubts.append(f"{name} was left out. {' '.join(min(own, key=_rank).faults)}")
    gap = torch.zeros(round(_GAP * SAMPLE_RATE))
    wav = torch.cat([piece for part in taken for piece in (gap, part.wav)][1:])
    words = " ".join(filter(None, (part.transcript for part in taken)))
    return JoinedClips(wav, words, ", ".join(part.clip + part.span for part in taken), tuple(doubts))


def _rank(part: _Candidate) -> tuple[float, ...]:
    return not part.transcript, -(min(part.decibels, _CLEAN) // _ALIKE), abs(part.gain) > _FAR, -len(part.wav)


def _parts(clip: NamedClip, misfit: Misfit) -> Iterator[_Candidate]:
    """Yield the parts of a clip that can be taken, with their faults. Raises HiggsError that names the clip."""
    words = clip.transcript.strip()
    try:
        check_clip(clip.wav, clip.rate, MAX_CLIP_SECONDS if words else _LONGEST)
        wav, has_part = torch.as_tensor(clip.wav), False
        cuts = [0, wav.shape[-1]] if words else pause_cuts(wav, clip.rate)
        for start, stop in pairwise(cuts):
            if not MIN_CLIP_SECONDS <= (stop - start) / clip.rate <= MAX_CLIP_SECONDS:
                continue
            piece = wav[..., start:stop]
            plain = prepare_clip(piece, clip.rate)
            if float(plain.abs().max()) < SILENCE_PEAK:
                continue
            gain = gain_of(plain)
            sound = plain * 10 ** (gain / 20)
            wrong = misfit(words, len(sound) / SAMPLE_RATE) if words else ""
            wrongs = [*faults(sound_checks(piece, plain)), *filter(None, [wrong])]
            first, last = spoken_part(sound) or (0, len(sound))
            span = f" ({start / clip.rate:.1f} to {stop / clip.rate:.1f} s)" if len(cuts) > 2 else ""
            has_part = True
            yield _Candidate(clip.name, span, sound[first:last], words, contrast(sound), gain, wrongs)
        if not has_part:
            raise HiggsError("no part of it can be cut out, because it has no pauses. Cut it to 5 to 30 seconds.")
    except HiggsError as error:
        raise HiggsError(f"{clip.name}: {error}") from error


def pause_cuts(wav: torch.Tensor, rate: int) -> list[int]:
    """Return where a recording [C, S] or [S] is cut: its ends, and pauses about _WINDOW seconds apart."""
    sound = prepare_clip(wav, rate)
    size, count = len(sound), math.ceil(len(sound) / (_WINDOW * SAMPLE_RATE))
    quiet = [(start, stop) for start, stop in silences(sound) if stop - start >= _PAUSE * SAMPLE_RATE]
    pauses = [(start + stop) // 2 for start, stop in quiet if start and stop < size]
    wanted = [size * number // count for number in range(1, count)] if pauses else []
    inner = {min(pauses, key=lambda pause: abs(pause - at)) for at in wanted}
    return [0, *(round(cut * rate / SAMPLE_RATE) for cut in sorted(inner)), wav.shape[-1]]
