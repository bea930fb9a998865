"""16-bit PCM: as bytes, as a WAV file, and as frames in place of codes for servers, which return no codes."""

from __future__ import annotations

import io
import wave

import numpy as np
import torch
import torch.nn.functional as F

from ..core.config import FRAME_SAMPLES, SAMPLE_RATE

CODEC = "pcm16"  # `Voice.codec` of such voices
LOWEST, HIGHEST = -32768, 32767


def to_int16(wav: torch.Tensor) -> torch.Tensor:
    """Round samples [n] float32 on the host, clipped to -1..1, to int16.

    By NumPy: a server's loop does this all the time, and torch's threads would wait there for those of other programs.
    """
    return torch.from_numpy((wav.numpy().clip(-1.0, 1.0) * np.float32(HIGHEST)).round().astype(np.int16))


def pcm_bytes(wav: torch.Tensor) -> bytes:
    """Return samples [n] float32 or int16 as 16-bit little-endian bytes."""
    samples = wav if wav.dtype == torch.int16 else to_int16(wav)
    return samples.numpy().astype("<i2", copy=False).tobytes()


def wav_bytes(wav: torch.Tensor, rate: int = SAMPLE_RATE) -> bytes:
    """Return samples [n] or [C, n], float32 or int16, at `rate` Hz as a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(wav) if wav.dim() > 1 else 1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm_bytes(wav.t() if wav.dim() > 1 else wav))
    return file.getvalue()


def is_sound(codes: torch.Tensor) -> bool:
    """True if codes [T, K] are PCM frames."""
    return codes.shape[1] == FRAME_SAMPLES


def to_frames(wav: torch.Tensor) -> torch.Tensor:
    """Convert wav [n] float32 in -1..1 to int16 [T, FRAME_SAMPLES], padded with silence."""
    samples = to_int16(wav)
    return F.pad(samples, (0, -len(samples) % FRAME_SAMPLES)).view(-1, FRAME_SAMPLES)


def to_wav(frames: torch.Tensor) -> torch.Tensor:
    """Convert PCM frames [T, FRAME_SAMPLES] to [n] float32."""
    return frames.reshape(-1).float().div_(HIGHEST).clamp_(-1.0, 1.0)
