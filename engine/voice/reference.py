"""Checks of reference clips, and the level at which they are encoded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from ..audio.echo import decay_seconds
from ..audio.levels import contrast
from ..audio.loudness import integrated_loudness
from ..audio.speech_like import is_speech_like
from ..core.errors import HiggsError
from .clip import MAX_CLIP_SECONDS, MIN_CLIP_SECONDS, Wave, check_clip, prepare_clip

LOUDNESS = -24.0  # LUFS; the built-in clips have -23.5 to -24.8, and louder or quieter ones change a voice's pitch
NOISY = 15.0  # dB of speech above its background
GOOD, FAIR, POOR = "good", "fair", "poor"
_NORMAL = 6.0  # dB of difference that changes no voice audibly
_QUIET = 20.0  # dB of gain that make the noise of a microphone audible
_FULL, _RUN, _MOST_RUNS = 0.999, 3, 4  # full scale; samples of a cut-off peak; such peaks that a loud clip may have
_CLEAN = 25.0  # dB of speech above its background
_DRY, _HALL = 0.35, 0.45  # seconds of `decay_seconds`
_SHORT, _LONG = 5.0, 15.0  # seconds


class ClipCheck(NamedTuple):
    """A property of a clip. shown: its value, or ""; verdict: GOOD, FAIR or POOR; advice: "" if it is good."""

    name: str
    shown: str
    verdict: str
    advice: str


def reference_of(wav: Wave, sample_rate: int) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Return what an encoder hears of a clip [C, S] or [S], and why it may make a bad voice: (samples [S'], warnings).

    Clips that are much louder or quieter than LOUDNESS are brought to it. Raises HiggsError like `check_clip`.
    """
    clip, checks = checked_reference(wav, sample_rate)
    return clip, tuple(faults(checks))


def checked_reference(wav: Wave, sample_rate: int) -> tuple[torch.Tensor, list[ClipCheck]]:
    """Return what an encoder hears of a clip, like `reference_of`, and all that was checked."""
    check_clip(wav, sample_rate)
    clip = prepare_clip(wav, sample_rate)
    checks, decibels = sound_checks(wav, clip), gain_of(clip)
    if abs(decibels) > _NORMAL or float(clip.abs().max()) > 1.0:
        clip = clip * 10 ** (decibels / 20)
    return clip, checks


def clip_checks(wav: Wave, sample_rate: int) -> list[ClipCheck]:
    """Return what a clip [C, S] or [S] is good for: length, level, noise, echo and speech.

    The advice of those that are POOR is what an engine warns of. A clip that cannot become a voice has one check.
    """
    seconds = wav.shape[-1] / max(1, sample_rate)
    try:
        _, checks = checked_reference(wav, sample_rate)
    except HiggsError as error:
        is_length = not MIN_CLIP_SECONDS <= seconds <= MAX_CLIP_SECONDS
        return [ClipCheck("length" if is_length else "level", f"{seconds:.1f} s" * is_length, POOR, str(error))]
    return [_length(seconds), *checks]


def faults(checks: Iterable[ClipCheck]) -> list[str]:
    """Return why a clip may make a bad voice."""
    return [check.advice for check in checks if check.verdict == POOR]


def sound_checks(wav: Wave, clip: torch.Tensor) -> list[ClipCheck]:
    """Check the sound of a clip [C, S] or [S], of which `prepare_clip` made `clip`, which is not silent."""
    decibels = gain_of(clip)
    level = _level(torch.as_tensor(wav), decibels)
    if not is_speech_like(clip):
        advice = (
            "The clip does not sound like speech, but like music, a tone or noise. Use 5 to 30 seconds of one person "
            "speaking."
        )
        return [level, ClipCheck("speech", "", POOR, advice)]
    noise = _noise(contrast(clip * 10 ** (decibels / 20)))
    echo = [] if noise.verdict == POOR else [_echo(decay_seconds(clip))]  # loud noise hides it
    return [level, noise, *echo, _good("speech", "")]


def gain_of(clip: torch.Tensor) -> float:
    """Return the dB that bring a clip [S] at SAMPLE_RATE, which is not silent, to LOUDNESS."""
    peak = float(clip.abs().max())
    return LOUDNESS - integrated_loudness(clip / peak) - 20 * math.log10(peak)  # very quiet clips would be gated


def _good(name: str, shown: str) -> ClipCheck:
    return ClipCheck(name, shown, GOOD, "")


def _length(seconds: float) -> ClipCheck:
    shown = f"{seconds:.1f} s"
    if _SHORT <= seconds <= _LONG:
        return _good("length", shown)
    return ClipCheck("length", shown, FAIR, "Clips of 5 to 15 seconds work best.")


def _level(wav: torch.Tensor, gain: float) -> ClipCheck:
    shown = f"{LOUDNESS - gain:.0f} LUFS"
    if (count := _cut_peaks(wav)) > _MOST_RUNS:
        advice = (
            f"The clip is overdriven: {count} of its peaks reach full scale, where they are cut off, which makes the "
            "voice rough. Use a recording at a lower level."
        )
        return ClipCheck("level", shown, POOR, advice)
    if gain > _QUIET:
        advice = "The clip is very quiet, and its noise is raised with it. Speak closer to the microphone."
        return ClipCheck("level", shown, FAIR, advice)
    return _good("level", shown)


def _noise(decibels: float) -> ClipCheck:
    shown = f"{max(0, round(decibels))} dB"
    if decibels >= _CLEAN:
        return _good("noise", shown)
    advice = f"The speech is only {shown} above the background, which the voice copies. Use a quieter recording."
    return ClipCheck("noise", shown, FAIR if decibels >= NOISY else POOR, advice)


def _echo(seconds: float) -> ClipCheck:
    shown = f"{seconds:.1f} s"
    if seconds < _DRY:
        return _good("echo", shown)
    advice = (
        "The room can be heard in the clip, and the voice copies it. Record closer to the mouth, in a furnished room."
    )
    return ClipCheck("echo", shown, FAIR if seconds < _HALL else POOR, advice)


def _cut_peaks(wav: torch.Tensor) -> int:
    """Return how often samples of wav [C, S] or [S] stay at full scale or above."""
    if wav.shape[-1] < _RUN:
        return 0
    full = (wav.detach().abs() >= _FULL).unfold(-1, _RUN, 1).all(-1).int()
    return int((full.diff(dim=-1) > 0).sum())
