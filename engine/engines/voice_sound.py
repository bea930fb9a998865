"""Audio of a voice, decoded from its codes on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from ..checkpoint.load import inspect
from ..codec.model import build_decoder
from ..core.errors import HiggsError
from ..voice.voice import Voice


def codec_of(folder: Path | str) -> str:
    """Return the name of a checkpoint's codec, as stored in voices. Reads headers only."""
    return inspect(folder).codec.config.name


@torch.inference_mode()
def voice_sound(voice: Voice, folder: Path | str) -> torch.Tensor:
    """Decode a voice's clip with the codec of a checkpoint's folder: [n] float32, 24 kHz.

    The decoder is in CPU memory for this call only. Raises HiggsError if the voice is of another codec.
    """
    codec = inspect(folder).codec
    if voice.codec not in ("", codec.config.name):
        raise HiggsError(
            "The voice was made with a different model, so this one cannot play it. Make it again from its clip."
        )
    cpu = torch.device("cpu")
    decoder = build_decoder(codec.config, codec.read("decoder", cpu))
    return decoder.decode(voice.codes.T[None])[0].clamp_(-1.0, 1.0)
