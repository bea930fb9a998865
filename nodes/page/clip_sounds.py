"""Recordings of Higgs Voice for the page: outlines, checks, playback, and voices saved as clips. Works on the CPU."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import torch

from ...engine import (
    SAMPLE_RATE,
    TRANSCRIPT_SUFFIXES,
    ClipParams,
    Wave,
    clip_checks,
    composed,
    cut_clip,
    misfit,
    read_whole,
    reference_of,
    resample,
    transcript_of,
    wav_bytes,
    write_file,
)
from ..library.clip_files import SUFFIXES, read_recording
from ..library.voice_folders import SAVED, numbered, voice_target

_PEAKS = 600  # numbers of an outline
_CLIP, _WORDS = ".wav", ".txt"
_TAKEN = (SAVED, *SUFFIXES, *TRANSCRIPT_SUFFIXES)  # of voices and their texts


def outline_of(name: str) -> dict:
    """Return a recording's seconds and its outline, peaks of 0 to 255 as hexadecimal digits.

    Raises HiggsError if it is missing, unreadable or too long.
    """
    wav, rate = read_recording(name)
    loud = np.abs(wav).max(0, initial=0.0) if wav.size else np.zeros(1)
    starts = np.unique(np.linspace(0, len(loud), _PEAKS, endpoint=False).astype(int))
    peaks = np.nan_to_num(np.maximum.reduceat(loud, starts), nan=0.0, posinf=1.0).clip(0, 1)
    return {"seconds": wav.shape[-1] / rate, "outline": (255 * peaks).astype(np.uint8).tobytes().hex()}


def checked(name: str, part: ClipParams, transcript: str) -> dict:
    """Return the seconds of a recording's part, what it is good for, and why the transcript cannot fit."""
    wav, rate = _part(name, part)
    seconds = wav.shape[-1] / rate
    wrong = misfit(transcript, seconds) if transcript.strip() else ""
    return {"seconds": seconds, "checks": [check._asdict() for check in clip_checks(wav, rate)], "misfit": wrong}


def sound_of(name: str, part: ClipParams) -> bytes:
    """Return a recording's part as a WAV file."""
    wav, rate = _part(name, part)
    return wav_bytes(resample(torch.as_tensor(wav).mean(0), rate, SAMPLE_RATE))


def save(name: str, part: ClipParams, transcript: str, voice: str) -> str:
    """Save a recording's part, as an encoder hears it, and its transcript in models/voices. Returns the file's name.

    Never overwrites: another voice of that name gets a number. Raises HiggsError if the part cannot become a voice.
    """
    clip, _ = reference_of(*_part(name, part))
    data, words = wav_bytes(clip), transcript.strip()
    path = _free(voice_target(voice).with_suffix(_CLIP), data, words)
    if words:
        write_file(path.with_suffix(_WORDS), words.encode(errors="replace"))
    write_file(path, data)
    return path.name


def _free(target: Path, data: bytes, words: str) -> Path:
    """Return the first numbered name that no voice has, or that has this one already."""
    names = {composed(other.name).lower() for other in target.parent.glob("*")}
    for number in count(1):
        path = numbered(target, number)
        if names.isdisjoint(composed(f"{path.stem}{suffix}").lower() for suffix in _TAKEN):
            return path
        if (
            path.is_file()
            and path.stat().st_size == len(data)
            and read_whole(path, len(data)) == data
            and transcript_of(path)[0] == words
        ):
            return path
    raise AssertionError


def _part(name: str, part: ClipParams) -> tuple[Wave, int]:
    wav, rate = read_recording(name)
    return cut_clip(wav, rate, part), rate
