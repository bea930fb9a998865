"""A reference clip on its way to the codec: read, checked, mono at 24 kHz."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import numpy as np
import torch

from ..config import SAMPLE_RATE, ClipParams
from ..errors import HiggsError
from ..optional import import_optional
from ..resample import check_rate, resample

Wave = torch.Tensor | np.ndarray  # of a clip: [S] or [C, S]

MIN_CLIP_SECONDS = 1.0


MAX_CLIP_SECONDS = 30.0  # longer references make cloning unstable, and each second takes 25 positions of the context


SILENCE_PEAK = 1e-4


def _mono(wav: Wave) -> torch.Tensor:
    # float32 [S] on the CPU
    wav = torch.as_tensor(wav).detach().to("cpu", torch.float32)
    if wav.ndim not in (1, 2):
        raise HiggsError(
            f"The reference clip has the shape {list(wav.shape)}; give one clip of the shape [channels, samples]."
        )
    return wav.mean(dim=0) if wav.ndim == 2 and wav.shape[0] else wav.reshape(-1)


def read_clip(path: str | os.PathLike) -> tuple[np.ndarray, int]:
    """(wav [C, S] float32, Hz) of a sound file. Raises HiggsError when there is none, or it cannot be read or used."""
    read = import_optional("soundfile", "read")  # here, so that without it the rest of the pack works
    if not Path(path).is_file():
        raise HiggsError(f"There is no audio file at {path}.")
    try:
        samples, rate = read(path, dtype="float32", always_2d=True)  # [S, C]
    except (OSError, RuntimeError) as error:
        raise HiggsError(f"{path} cannot be read as audio ({error}). Save it as .wav or .flac.") from error
    check_rate(rate, str(path))
    return samples.T, rate


def decode_clip(data: bytes) -> tuple[torch.Tensor, int]:
    """A sound file's bytes -> (wav [C, S] float32, Hz). Raises RuntimeError for what is none."""
    samples, rate = import_optional("soundfile", "read")(io.BytesIO(data), dtype="float32", always_2d=True)
    return torch.from_numpy(samples.T), rate


def cut_clip(wav: Wave, sample_rate: int, part: ClipParams) -> Wave:
    """The part of a recording [C, S] or [S] that is a reference clip; what reaches beyond its end is not there.

    Raises HiggsError for a part that starts past the end.
    """
    begin, size = round(part.start * sample_rate), wav.shape[-1]
    if begin and begin >= size:
        raise HiggsError(
            f"start is {part.start:g} s, but the clip is {size / sample_rate:.1f} s long. Choose an earlier start."
        )
    return wav[..., begin : begin + round(part.length * sample_rate) if part.length else size]


def clip_seconds(path: str | os.PathLike) -> float:
    """Length of a sound file, by its head. Raises HiggsError when it cannot be read."""
    info = import_optional("soundfile", "info")
    try:
        return info(path).duration
    except (OSError, RuntimeError) as error:
        raise HiggsError(f"{path} cannot be read as audio ({error}). Save it as .wav or .flac.") from error


def check_clip(wav: Wave, sample_rate: int) -> None:
    """Raises HiggsError when a reference clip cannot give a voice; says what it holds and what to do.

    sample_rate: Hz.
    """
    if sample_rate <= 0:
        raise HiggsError(f"The reference clip has a sample rate of {sample_rate}. Load the audio file again.")
    mono = _mono(wav)
    if mono.numel() == 0:
        raise HiggsError("The reference clip is empty. Give a clip of 5 to 30 seconds of clear speech.")
    bad = int((~torch.isfinite(mono)).sum())
    if bad:
        raise HiggsError(
            f"The reference clip holds {bad} samples that are not numbers (NaN or infinite). "
            "Check the node that made it, or load the audio file again."
        )
    seconds = mono.numel() / sample_rate  # told rounded away from the limit, else 30.02 would read as 30.0
    if seconds < MIN_CLIP_SECONDS:
        raise HiggsError(
            f"The reference clip is {math.floor(seconds * 100) / 100:.2f} s long, too short to clone a voice from. "
            "Give 5 to 30 seconds of clear speech."
        )
    if seconds > MAX_CLIP_SECONDS:
        raise HiggsError(
            f"The reference clip is {math.ceil(seconds * 10) / 10:.1f} s long; more than {MAX_CLIP_SECONDS:.0f} s "
            "makes cloning unstable. Trim it to 5 to 30 seconds of clear speech, and its transcript with it."
        )
    peak = float(mono.abs().max())
    if peak < SILENCE_PEAK:
        raise HiggsError("The reference clip is silent. Give a clip with audible speech.")


def prepare_clip(wav: Wave, sample_rate: int) -> torch.Tensor:
    """What the codec hears: wav [C, S] or [S] at sample_rate Hz -> float32 [S'] mono at 24 kHz on the CPU.

    Raises HiggsError for a sample rate that cannot be resampled in reasonable memory.
    """
    mono = _mono(wav)
    if sample_rate == SAMPLE_RATE:
        return mono
    check_rate(sample_rate, "The reference clip")
    return resample(mono, sample_rate, SAMPLE_RATE)
