"""Reference clips: reading, cutting, and conversion to 24 kHz mono. Checks: reference.py."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ..audio.packed import packed_seconds, read_packed
from ..audio.resample import check_rate, resample
from ..core.config import MOST_CHANNELS, SAMPLE_RATE, ClipParams
from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..files.plain_text import read_plain_text
from ..files.whole_file import path_for_c

Wave = torch.Tensor | np.ndarray  # clip [S] or [C, S]

CLIP_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".m4a", ".aac", ".wma")
FILM_SUFFIXES = (".mp4", ".mov", ".webm", ".3gp")  # their sound is a clip too
TRANSCRIPT_SUFFIXES = (".reference.txt", ".txt", ".TXT")  # beside a clip, in order of precedence
BUILT_IN_CLIPS = Path(__file__).parent / "built_in"  # each with its transcript in a .txt file
MIN_CLIP_SECONDS = 1.0
MAX_CLIP_SECONDS = 30.0  # longer clips make cloning unstable; each second takes 25 context positions
SILENCE_PEAK = 1e-4
_UNKNOWN = 1 << 62  # libsndfile gives a FLAC stream without a length more samples


def _mono(wav: Wave) -> torch.Tensor:
    # float32 [S] on the CPU
    wav = torch.as_tensor(wav).detach().to("cpu", torch.float32)
    if wav.ndim not in (1, 2):
        raise HiggsError(
            f"The reference clip has the shape {list(wav.shape)}, but [channels, samples] is needed. Use one clip."
        )
    return wav.mean(dim=0) if wav.ndim == 2 and wav.shape[0] else wav.reshape(-1)


def read_clip(path: str | os.PathLike, most: float = MAX_CLIP_SECONDS) -> tuple[np.ndarray, int]:
    """Read a sound file, or the sound of a film, as (wav [C, S] float32, Hz).

    Raises HiggsError if it is missing, unreadable or unusable, or longer than `most` seconds.
    """
    with _file_at(path) as (file, sound):
        return _samples(file, sound, _check(str(path), most))


def decode_clip(
    data: bytes, most: float = MAX_CLIP_SECONDS, subject: str = "The reference clip"
) -> tuple[torch.Tensor, int]:
    """Decode the bytes of a file, like `read_clip`. Raises RuntimeError with the reason if they are not sound."""
    file = _Bytes(data)
    with _opened(file) as sound:
        wav, rate = _samples(file, sound, _check(subject, most))
    return torch.from_numpy(wav), rate


class _Bytes(io.BytesIO):
    """A file in memory that clamps seeks before its beginning, for which soundfile would print a traceback."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(max(0, offset) if whence == os.SEEK_SET else offset, whence)


@contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[Any]:
    """Open a file with soundfile. Yields None if it cannot, or if the length is unknown: others are left to PyAV."""
    try:
        given = path_for_c(file) if isinstance(file, Path) else file
        sound = import_optional("soundfile", "SoundFile")(given)  # imported lazily, so the pack works without it
    except (RuntimeError, TypeError):  # soundfile's own
        yield None
    else:
        with sound:
            yield sound if sound.frames < _UNKNOWN else None


@contextmanager
def _file_at(path: str | os.PathLike) -> Iterator[tuple[Path, Any]]:
    """Open a file like `_opened`. Raises HiggsError if it is not sound, also while it is read."""
    file = Path(path)
    if not file.is_file():
        raise HiggsError(f"There is no audio file at {path}.")
    try:
        with _opened(file) as sound:
            yield file, sound
    except (OSError, RuntimeError) as error:
        raise HiggsError(f"{path} cannot be read as audio ({error}). Save it as .wav or .flac.") from error


def _check(subject: str, most: float) -> Callable[[int, int, float], None]:
    def check(rate: int, channels: int, seconds: float) -> None:
        check_rate(rate, subject)
        if channels > MOST_CHANNELS:
            raise HiggsError(f"{subject} has {channels} channels. Save it with one or two.")
        if seconds > most:
            raise _too_long(subject, seconds, most)

    return check


def _samples(file: Path | BinaryIO, sound: Any, check: Callable[[int, int, float], None]) -> tuple[np.ndarray, int]:
    """Read (wav [C, S], Hz), after checking the header."""
    if sound is None:
        return read_packed(file, check)
    check(sound.samplerate, sound.channels, sound.frames / max(1, sound.samplerate))
    return sound.read(sound.frames, dtype="float32", always_2d=True).T, sound.samplerate


def _too_long(subject: str, seconds: float, most: float = MAX_CLIP_SECONDS) -> HiggsError:
    why = "makes cloning unstable. Trim it to 5 to 30 seconds of clear speech, and its transcript to match."
    why = why if most == MAX_CLIP_SECONDS else "cannot be read. Cut it into parts."
    return HiggsError(f"{subject} is {math.ceil(seconds * 10) / 10:.1f} s long; more than {most:.0f} s {why}")


def cut_clip(wav: Wave, sample_rate: int, part: ClipParams) -> Wave:
    """Return part of a recording [C, S] or [S], clamped to its end.

    Raises HiggsError if the part starts past the end.
    """
    begin, size = round(part.start * sample_rate), wav.shape[-1]
    if begin and begin >= size:
        raise HiggsError(
            f"start is {part.start:g} s, but the clip is {size / sample_rate:.1f} s long. Choose an earlier start."
        )
    return wav[..., begin : begin + round(part.length * sample_rate) if part.length else size]


def clip_seconds(path: str | os.PathLike) -> float:
    """Return the seconds of a sound file, from its header if it tells them. Raises HiggsError if it cannot be read."""
    with _file_at(path) as (file, sound):
        if sound is None:
            return packed_seconds(file, _check(str(path), MAX_CLIP_SECONDS))
        return sound.frames / max(1, sound.samplerate)


def check_clip(wav: Wave, sample_rate: int, most: float = MAX_CLIP_SECONDS) -> None:
    """Raise HiggsError if a clip cannot become a voice, with the reason and remedy. sample_rate: Hz. most: seconds."""
    if sample_rate <= 0:
        raise HiggsError(f"The reference clip has a sample rate of {sample_rate}. Load the audio file again.")
    mono = _mono(wav)
    if mono.numel() == 0:
        raise HiggsError("The reference clip is empty. Use a clip of 5 to 30 seconds of clear speech.")
    if bad := int((~torch.isfinite(mono)).sum()):
        raise HiggsError(
            f"The reference clip has {bad} samples that are not numbers (NaN or infinite). Check the node that made "
            "it, or load the audio file again."
        )
    seconds = mono.numel() / sample_rate  # messages round away from the limit, else 30.02 would read as 30.0
    if seconds < MIN_CLIP_SECONDS:
        raise HiggsError(
            f"The reference clip is {math.floor(seconds * 100) / 100:.2f} s long, too short to clone a voice from. "
            "Use 5 to 30 seconds of clear speech."
        )
    if seconds > most:
        raise _too_long("The reference clip", seconds, most)
    peak = float(mono.abs().max())
    if peak < SILENCE_PEAK:
        raise HiggsError("The reference clip is silent. Use a clip with audible speech.")


def read_reference(path: str | os.PathLike) -> tuple[np.ndarray, int]:
    """Read a clip that is to become a voice. Raises HiggsError like `read_clip` and `check_clip`, naming the file."""
    wav, rate = read_clip(path)
    try:
        check_clip(wav, rate)
    except HiggsError as error:
        raise HiggsError(f"{path}: {error}") from error
    return wav, rate


def prepare_clip(wav: Wave, sample_rate: int) -> torch.Tensor:
    """Convert wav [C, S] or [S] at sample_rate Hz to the codec's input: float32 [S'] mono at 24 kHz on the CPU.

    Raises HiggsError if resampling the sample rate would take too much memory.
    """
    mono = _mono(wav)
    if sample_rate == SAMPLE_RATE:
        return mono
    check_rate(sample_rate, "The reference clip")
    return resample(mono, sample_rate, SAMPLE_RATE)


def built_in_clip(name: str) -> Path | None:
    """Return the built-in clip of that name: amber, or built-in/amber.flac as in the nodes. None if there is none."""
    plain = name.strip().replace("\\", "/").lower().removeprefix("built-in/").removesuffix(".flac")
    return next((path for path in BUILT_IN_CLIPS.glob("*.flac") if path.stem == plain), None)


def transcript_of(clip: Path) -> tuple[str, str]:
    """Return (transcript of a clip, name of the text file beside it), both empty if there is none.

    Raises HiggsError if the file cannot be read.
    """
    for suffix in TRANSCRIPT_SUFFIXES:
        path = clip.with_suffix(suffix)
        if path.is_file():
            try:
                return read_plain_text(path)[0].strip(), path.name
            except OSError as error:
                raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Save it again.") from error
    return "", ""
