"""Sound as the bytes of a file, in formats that OpenAI's API names."""

from __future__ import annotations

import io

import torch

from ..config import SAMPLE_RATE
from ..optional import import_optional

FORMATS = {  # name -> media type
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "opus": "audio/ogg",
}
_FILES = {"mp3": ("MP3", None), "wav": ("WAV", "PCM_16"), "flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS")}


def pcm(wav: torch.Tensor) -> bytes:
    """wav [n] float32 in -1..1 -> 16 bits, little-endian, one channel, 24 kHz."""
    return (wav.clamp(-1, 1) * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes()


def encoded(wav: torch.Tensor, sound: str) -> bytes:
    """wav [n] float32 -> a whole file of FORMATS."""
    if sound == "pcm":
        return pcm(wav)
    kind, subtype = _FILES[sound]
    buffer = io.BytesIO()
    import_optional("soundfile", "write")(buffer, wav.numpy(), SAMPLE_RATE, format=kind, subtype=subtype)
    return buffer.getvalue()
