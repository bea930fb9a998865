"""Descriptions and sounds of voices for the page. Works on the CPU, in any thread."""

from __future__ import annotations

import functools
import mimetypes
from pathlib import Path

import torch

from ...engine import (
    MAX_CLIP_SECONDS,
    MIN_CLIP_SECONDS,
    SAMPLE_RATE,
    HiggsError,
    Voice,
    VoiceHead,
    clip_seconds,
    codec_of,
    file_stamp,
    read_clip,
    read_voice_head,
    read_whole,
    resample,
    transcript_of,
    voice_sound,
    wav_bytes,
)
from ..library.checkpoint_folders import AUTO, checkpoints, find_checkpoint
from ..library.checkpoint_folders import fingerprint as files_of
from ..library.voice_folders import SAVED, choices, find_voice

_SHOWN = 80  # characters of a transcript
_KEPT = 16  # decoded voices
_MOST_PLAYED = 64 << 20  # bytes of a clip
_PLAYED = (".wav", ".flac", ".mp3", ".ogg")  # by every browser
_KNOWN = 4096  # files whose headers are remembered


def listed(model: str) -> list[dict]:
    """Describe each voice for a model as the loader calls it: name, seconds, start of the transcript, problems.

    Raises HiggsError if there is no such model.
    """
    codec = _codec_for(model)
    return [_told(name, path, codec) for name, path in choices().items()]


def _told(name: str, path: Path, codec: str) -> dict:
    head, problem = _head(path, *file_stamp(path))
    problem = problem or _misfit(path, head, codec)
    try:
        transcript = head.transcript if path.suffix.lower() == SAVED else transcript_of(path)[0]
    except HiggsError as error:  # of this voice alone
        transcript, problem = None, problem or str(error)
    transcript = " ".join((transcript or "").split())
    shown = transcript if len(transcript) <= _SHOWN else transcript[:_SHOWN].rstrip() + "..."
    return {"name": name, "seconds": round(head.seconds, 2), "transcript": shown, "problem": problem}


def _misfit(path: Path, head: VoiceHead, codec: str) -> str:
    """Return why a voice does not fit this codec. Empty if it does."""
    if path.suffix.lower() != SAVED:
        fits = MIN_CLIP_SECONDS <= head.seconds <= MAX_CLIP_SECONDS
        return "" if fits else f"Trim this clip: it must last {MIN_CLIP_SECONDS:.0f} to {MAX_CLIP_SECONDS:.0f} seconds."
    if codec and head.is_sound:
        return "This voice works only with Higgs TTS Server. To use it on this machine, make it again from its clip."
    if codec and head.codec not in ("", codec):
        return "This voice was made with a different model. Make it again from its clip."
    return ""


@functools.lru_cache(_KNOWN)
def _head(path: Path, *seen: int) -> tuple[VoiceHead, str]:
    """Return a voice file's header (a clip has only its length) and why it cannot be read. seen: its fingerprint."""
    try:
        saved = path.suffix.lower() == SAVED
        return (read_voice_head(path) if saved else VoiceHead(clip_seconds(path), None, "")), ""
    except HiggsError as error:
        return VoiceHead(0.0, None, ""), str(error)


def sound_of(name: str) -> tuple[bytes, str]:
    """Return (sound file, media type) of the voice that a workflow calls `name`.

    Raises HiggsError if there is no such voice, or no checkpoint to decode it with.
    """
    path = find_voice(name)
    if path.suffix.lower() not in (SAVED, *_PLAYED):
        wav, rate = read_clip(path)
        return wav_bytes(resample(torch.from_numpy(wav).mean(0), rate, SAMPLE_RATE)), "audio/wav"
    if path.suffix.lower() != SAVED:
        try:
            return read_whole(path, _MOST_PLAYED), mimetypes.guess_type(path.name)[0] or "audio/wav"
        except OSError as error:
            raise HiggsError(f"{path.name} cannot be played: {error.strerror or error}.") from error
    return _decoded(path, *file_stamp(path)), "audio/wav"


@functools.lru_cache(_KEPT)
def _decoded(path: Path, *seen: int) -> bytes:
    voice = Voice.load(path)
    if voice.is_sound:
        return wav_bytes(voice.wav())
    for found in checkpoints().values():
        if found.complete and voice.codec in ("", _codec(found.path)):
            return wav_bytes(voice_sound(voice, found.path))
    raise HiggsError(f"{path.name} was made with a model that is not on this machine, so it cannot be played here.")


def _codec_for(model: str) -> str:
    """Return the model's codec. Empty if the model must be downloaded first."""
    try:
        return _codec(find_checkpoint(model or AUTO).path)
    except HiggsError:
        return ""


def _codec(folder: Path) -> str:
    return _codec_seen(folder, str(files_of(folder)))


@functools.lru_cache(64)
def _codec_seen(folder: Path, seen: str) -> str:
    try:
        return codec_of(folder)
    except HiggsError:
        return ""
