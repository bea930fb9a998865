"""Sound in the place of codes: a frame is its 16-bit samples, where a server speaks and keeps the codec's codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..core.config import FRAME_SAMPLES

CODEC = "pcm16"  # as a voice of this kind names its codec
LOWEST, HIGHEST = -32768, 32767


def is_sound(codes: torch.Tensor) -> bool:
    """Whether codes [T, K] are samples."""
    return codes.shape[1] == FRAME_SAMPLES


def to_frames(wav: torch.Tensor) -> torch.Tensor:
    """wav [n] float32 in -1..1 -> int16 [T, FRAME_SAMPLES]; the last frame ends in silence."""
    samples = (wav.clamp(-1.0, 1.0) * HIGHEST).round().to(torch.int16)
    return F.pad(samples, (0, -len(samples) % FRAME_SAMPLES)).view(-1, FRAME_SAMPLES)


def to_wav(frames: torch.Tensor) -> torch.Tensor:
    """What `to_frames` made -> [n] float32."""
    return frames.reshape(-1).float().div_(HIGHEST).clamp_(-1.0, 1.0)
