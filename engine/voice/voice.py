"""Cloned voices: codes, transcript and file format."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes

from ..audio import pcm
from ..core.codes import CODEBOOK_SIZE
from ..core.config import FRAME_RATE, FRAME_SAMPLES, MOST_VOICE_FRAMES, SAMPLE_RATE
from ..core.errors import HiggsError, shown, shown_name
from ..files.file_list import write_file
from ..files.plain_text import encodable

FORMAT = "higgs-tts-voice"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class Voice:
    """A cloned voice.

    codes: int64 [T, K] on the CPU, values 0..1023, not delayed; or PCM frames (pcm.py) in a voice for servers.
    transcript: text of the clip, None if unknown. codec: name of the network that made the codes, empty if unknown.
    warnings: why the clip may make a bad voice; not saved.

    Raises HiggsError if codes have another shape, dtype or range.
    """

    codes: torch.Tensor
    transcript: str | None = None
    name: str = ""
    codec: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
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
        # A copy, so that callers cannot change it, and no mapped file stays open, which Windows could not replace.
        codes = codes.detach().to("cpu", torch.int64, copy=True).contiguous()
        low, high = int(codes.min()), int(codes.max())
        least, most = (pcm.LOWEST, pcm.HIGHEST) if self.is_sound else (0, CODEBOOK_SIZE - 1)
        if low < least or high > most:
            raise HiggsError(
                f"Voice codes must lie in {least}..{most}, but they span {low}..{high}. "
                "Create the voice again from its clip."
            )
        object.__setattr__(self, "codes", codes)

    @property
    def seconds(self) -> float:
        return len(self.codes) / FRAME_RATE

    @property
    def is_sound(self) -> bool:
        """True if the codes are the clip's PCM frames, for servers."""
        return self.codec == pcm.CODEC and pcm.is_sound(self.codes)

    def wav(self) -> torch.Tensor:
        """Return the clip [n] float32. Requires `is_sound`."""
        return pcm.to_wav(self.codes)

    def digest(self) -> str:
        """Return the digest of what the voice sounds like: codes and transcript."""
        data = self.codes.numpy().tobytes() + repr((self.codes.shape, self.transcript)).encode()
        return hashlib.sha256(data).hexdigest()

    def save(self, path: str | os.PathLike) -> Path:
        """Write the voice as safetensors, replacing an existing file atomically.

        Raises HiggsError if the file cannot be written.
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
        metadata = {key: encodable(value) for key, value in metadata.items()}
        data = safetensors_bytes({"codes": self.codes.to(torch.int16)}, metadata)
        write_file(path, data)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> Voice:
        """Read a saved voice. Raises HiggsError, naming the file, if it is missing or not a voice."""
        path = Path(path)
        with _opened(path) as (file, metadata, _):
            codes = file.get_tensor("codes")
        try:
            return cls(codes, metadata.get("transcript"), metadata.get("name", ""), metadata.get("codec", ""))
        except HiggsError as error:
            raise HiggsError(f"{path}: {error}") from error


def voice_of_speech(codes: torch.Tensor, transcript: str | None, name: str) -> Voice:
    """Make a voice from spoken codes [T, K], with special codes (BOC, EOC) replaced by 0."""
    if pcm.is_sound(codes):
        return Voice(codes, transcript, name, pcm.CODEC)
    return Voice(codes.masked_fill(codes >= CODEBOOK_SIZE, 0), transcript, name)


class VoiceHead(NamedTuple):
    seconds: float
    transcript: str | None
    codec: str  # name of the network that made the codes, empty if unknown

    @property
    def is_sound(self) -> bool:
        """True if the file holds the clip itself, for servers."""
        return self.codec == pcm.CODEC


def read_voice_head(path: str | os.PathLike) -> VoiceHead:
    """Read the header of a voice file, without codes. Raises HiggsError if it is not a voice file."""
    with _opened(Path(path)) as (_, metadata, frames):
        return VoiceHead(frames / FRAME_RATE, metadata.get("transcript"), metadata.get("codec", ""))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, str], int]]:
    """Yield (file, metadata, frames) of a voice file. Raises HiggsError if its header is not one."""
    if not path.is_file():
        raise HiggsError(f"There is no voice file at {path}. Save a voice there first, or choose another file.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            _check_metadata(path, metadata, names)
            shape = file.get_slice("codes").get_shape()
            if len(shape) != 2 or not 0 < shape[0] <= MOST_VOICE_FRAMES or shape[1] > FRAME_SAMPLES:
                raise HiggsError(
                    f"{path}: voice codes must have the shape [frames, codebooks] with at most {MOST_VOICE_FRAMES} "
                    f"frames, not {shape}. Create the voice again from its clip."
                )
            yield file, metadata, shape[0]
    except (SafetensorError, OSError) as error:
        raise HiggsError(
            f"{path} is not a voice file: it cannot be read as safetensors ({shown_name(str(error))}). Choose a saved "
            "Higgs voice; an audio clip must be turned into a voice first."
        ) from error


def _check_metadata(path: Path, metadata: dict[str, str], names: list[str]) -> None:
    if metadata.get("format") != FORMAT or "codes" not in names:
        raise HiggsError(
            f"{path} is a safetensors file with {len(names)} tensors, but not a Higgs voice; it may contain model "
            "weights. Choose a saved Higgs voice."
        )
    version = metadata.get("format_version", "")
    if version != str(FORMAT_VERSION):
        raise HiggsError(
            f"{path} is a voice of format version {shown(version)}, but this pack reads version {FORMAT_VERSION}. "
            "Update the pack, or create the voice again from its clip."
        )
    for key, value in (("sample_rate", SAMPLE_RATE), ("frame_rate", FRAME_RATE)):
        if metadata.get(key) != str(value):
            raise HiggsError(
                f"{path} was made for {key} {shown_name(str(metadata.get(key)))}, but Higgs works at {value}. "
                "Create the voice again from its clip."
            )
