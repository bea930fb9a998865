"""Whole sounds as files in memory, with tags, by PyAV."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch

from ..core.errors import HiggsError
from ..core.optional import import_optional
from .resample import resample

# Kind -> (FFmpeg's container, encoder, bits per second; 0: lossless).
SOUND_FILES = {
    "flac": ("flac", "flac", 0),
    "wav": ("wav", "pcm_s16le", 0),
    "mp3": ("mp3", "libmp3lame", 128_000),
    "ogg": ("ogg", "libopus", 96_000),
    "m4b": ("ipod", "aac", 96_000),
}


_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


def encode_sound(wave: torch.Tensor, rate: int, kind: str, tags: Mapping[str, str]) -> bytes:
    """Encode a wave [C, n] of one or two channels at `rate` Hz as a file of a kind in SOUND_FILES.

    Raises HiggsError if PyAV is missing, or has no such encoder or not at this rate.
    """
    container, codec, bits = SOUND_FILES[kind]
    open_file, frame_class = import_optional("av", "open"), import_optional("av", "AudioFrame")
    if codec == "libopus" and rate not in _OPUS_RATES:
        wave, rate = resample(wave, rate, _OPUS_RATES[-1]), _OPUS_RATES[-1]
    layout = "mono" if len(wave) == 1 else "stereo"
    samples = (wave.clamp(-1.0, 1.0) * 32767.0).round().to(torch.int16).T.reshape(1, -1)
    frame = frame_class.from_ndarray(np.ascontiguousarray(samples.numpy()), "s16", layout)
    frame.sample_rate = rate
    data = io.BytesIO()
    try:
        with open_file(data, "w", format=container) as file:
            stream = file.add_stream(codec, rate=rate, layout=layout)
            if bits:
                stream.bit_rate = bits
            file.metadata.update(tags)
            file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
    except (import_optional("av", "FFmpegError"), ValueError) as error:  # ValueError: no such encoder
        raise HiggsError(f"sound at {rate} Hz could not be written as {kind} ({error}). Choose flac or wav.") from error
    return data.getvalue()
