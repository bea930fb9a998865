"""A cloned voice: its codes and transcript, its file, and the care of reference clips. Knows no model and no codec."""

from __future__ import annotations

import math
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes

from .config import CODEBOOK_SIZE, FRAME_RATE, SAMPLE_RATE
from .errors import HiggsError
from .libraries import borrow
from .resample import MAX_TAPS, resample, taps

FORMAT = "higgs-tts-voice"
FORMAT_VERSION = 1
MIN_CLIP_SECONDS = 1.0
MAX_CLIP_SECONDS = 30.0  # longer references make cloning unstable, and each second takes 25 positions of the context
SILENCE_PEAK = 1e-4


@dataclass(frozen=True, eq=False)
class Voice:
    """codes: int64 [T, N] on the CPU, values 0..1023, not delayed; transcript: what the clip says, None if not known;
    codec: what network the codes are of, empty if not known.

    Raises HiggsError for codes of another shape, kind or range.
    """

    codes: torch.Tensor
    transcript: str | None = None
    name: str = ""
    codec: str = ""

    def __post_init__(self):
        codes = self.codes
        shape = tuple(codes.shape)
        if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
            raise HiggsError(
                f"Voice codes must be whole numbers, not {codes.dtype}. Create the voice again from its clip."
            )
        if len(shape) != 2 or 0 in shape:
            raise HiggsError(
                f"Voice codes must have the shape [frames, codebooks], not {list(shape)}. "
                "Create the voice again from its clip."
            )
        # A copy of its own: it must not change under us, nor hold a mapped file open, which Windows would not replace.
        codes = codes.detach().to("cpu", torch.int64, copy=True).contiguous()
        low, high = int(codes.min()), int(codes.max())
        if low < 0 or high >= CODEBOOK_SIZE:
            raise HiggsError(
                f"Voice codes must lie in 0..{CODEBOOK_SIZE - 1}, but they span {low}..{high}. "
                "Create the voice again from its clip."
            )
        object.__setattr__(self, "codes", codes)

    @property
    def seconds(self) -> float:
        return len(self.codes) / FRAME_RATE

    def save(self, path: str | os.PathLike) -> Path:
        """Writes the voice as safetensors; a file already there is replaced whole or not at all.

        Raises HiggsError when the file cannot be written.
        """
        path = Path(path)
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "name": self.name,
            "codec": self.codec,
            "sample_rate": str(SAMPLE_RATE),
            "frame_rate": str(FRAME_RATE),
        }
        if self.transcript is not None:
            metadata["transcript"] = self.transcript
        data = safetensors_bytes({"codes": self.codes.to(torch.int16)}, metadata)
        # Beside the target, so that the rename stays on one disk; closed before it, which Windows asks for.
        partial = path.with_name(f".{uuid.uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise HiggsError(
                f"The voice could not be saved to {path}: {error.strerror or error}. "
                "Choose a folder that can be written to, and close programs that have the file open."
            ) from error
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> Voice:
        """Reads what `save` wrote. Raises HiggsError that names the file when it is missing or not a voice."""
        path = Path(path)
        if not path.is_file():
            raise HiggsError(f"There is no voice file at {path}. Save a voice there first, or choose another file.")
        try:
            with safe_open(path, framework="pt") as file:
                metadata, names = file.metadata() or {}, list(file.keys())
                _check_metadata(path, metadata, names)
                codes = file.get_tensor("codes")
        except (SafetensorError, OSError) as error:
            raise HiggsError(
                f"{path} is not a voice file: it cannot be read as safetensors ({error}). "
                "Choose a file that was saved as a Higgs voice; an audio clip has to be turned into a voice first."
            ) from error
        try:
            return cls(codes, metadata.get("transcript"), metadata.get("name", ""), metadata.get("codec", ""))
        except HiggsError as error:
            raise HiggsError(f"{path}: {error}") from error


def _check_metadata(path: Path, metadata: dict[str, str], names: list[str]) -> None:
    if metadata.get("format") != FORMAT or "codes" not in names:
        raise HiggsError(
            f"{path} is a safetensors file of {len(names)} tensors, but not a Higgs voice; it may hold model weights. "
            "Choose a file that was saved as a Higgs voice."
        )
    version = metadata.get("format_version", "")
    if version != str(FORMAT_VERSION):
        raise HiggsError(
            f"{path} is a voice of format version {version!r}; this pack reads version {FORMAT_VERSION}. "
            "Update the pack, or create the voice again from its clip."
        )
    for key, value in (("sample_rate", SAMPLE_RATE), ("frame_rate", FRAME_RATE)):
        if metadata.get(key) != str(value):
            raise HiggsError(
                f"{path} was made for {key} {metadata.get(key)}, but Higgs works at {value}. "
                "Create the voice again from its clip."
            )


def _mono(wav) -> torch.Tensor:
    # [S] or [C, S], tensor or array -> float32 [S] on the CPU
    wav = torch.as_tensor(wav).detach().to("cpu", torch.float32)
    if wav.ndim not in (1, 2):
        raise HiggsError(
            f"The reference clip has the shape {list(wav.shape)}; give one clip of the shape [channels, samples]."
        )
    return wav.mean(dim=0) if wav.ndim == 2 and wav.shape[0] else wav.reshape(-1)


def read_clip(path: str | os.PathLike) -> tuple:
    """(wav [C, S] float32, Hz) of a sound file. Raises HiggsError when there is none, or it cannot be read."""
    read = borrow("soundfile", "read")  # here, so that without it the rest of the pack works
    if not Path(path).is_file():
        raise HiggsError(f"There is no audio file at {path}.")
    try:
        samples, rate = read(path, dtype="float32", always_2d=True)  # [S, C]
    except (OSError, RuntimeError) as error:
        raise HiggsError(f"{path} cannot be read as audio ({error}). Save it as .wav or .flac.") from error
    return samples.T, rate


def check_clip(wav, sample_rate: int) -> None:
    """Raises HiggsError when a reference clip cannot give a voice; says what it holds and what to do.

    wav: [S] or [C, S], tensor or array; sample_rate: Hz.
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


def prepare_clip(wav, sample_rate: int) -> torch.Tensor:
    """What the codec hears: wav [C, S] or [S] at sample_rate Hz -> float32 [S'] mono at 24 kHz on the CPU.

    Raises HiggsError for a sample rate that cannot be resampled in reasonable memory.
    """
    mono = _mono(wav)
    if sample_rate == SAMPLE_RATE:
        return mono
    if taps(sample_rate, SAMPLE_RATE) > MAX_TAPS:
        raise HiggsError(
            f"The reference clip has the unusual sample rate {sample_rate}. Save it at 24000, 44100 or 48000 Hz first."
        )
    return resample(mono, sample_rate, SAMPLE_RATE)
