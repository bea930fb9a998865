"""Sound files written as a book is spoken: FLAC and WAV by soundfile, MP3 and M4B by PyAV."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..audio.encoded import PLAIN, EncodedFile
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional
from .book import BookDetails

BOUND = "m4b"  # one file with all chapters
LOSSLESS = ("flac", "wav")
_BLOCK = SAMPLE_RATE * 10  # samples read at a time


@dataclass(frozen=True)
class Tags:
    """Metadata for players. Empty fields are left out."""

    title: str
    album: str = ""
    artist: str = ""
    track: int = 0
    details: BookDetails = BookDetails()

    def of_soundfile(self) -> dict[str, str]:
        """Return the tags that are not empty, by soundfile's names. It has none for a narrator and a language."""
        about = self.details
        own = {"tracknumber": str(self.track or ""), "date": about.year, "genre": about.genre}
        return _filled(self._common | own | {"comment": about.description})

    def of_ffmpeg(self) -> dict[str, str]:
        """Return the tags that are not empty, by FFmpeg's names. Players show the composer as the narrator."""
        about = self.details
        own = {"track": str(self.track or ""), "composer": about.narrator, "date": about.year, "genre": about.genre}
        described = {"description": about.description, "comment": about.description, "language": about.language}
        return _filled(self._common | own | described | {"album_artist": self.artist if about.narrator else ""})

    @property
    def _common(self) -> dict[str, str]:
        return {"title": self.title, "album": self.album, "artist": self.artist}


def _filled(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if value}


def require(kind: str) -> None:
    """Check that a kind of file can be written here. Raises HiggsError if not."""
    if kind in LOSSLESS:
        import_optional("soundfile", "SoundFile")
        return
    try:
        import_optional("av", "open")
        if kind == BOUND and not hasattr(import_optional("av.container", "OutputContainer"), "set_chapters"):
            raise HiggsError("PyAV is too old to write chapters.")
    except HiggsError as error:
        raise HiggsError(
            f"{kind} files need PyAV, which comes with ComfyUI. Install it (pip install --upgrade av), or choose flac "
            f"or wav. ({error})"
        ) from error


def open_sound(path: Path, kind: str, tags: Tags) -> BySoundfile | EncodedFile:
    """Open a new file of that kind, whatever its suffix. Raises OSError."""
    return BySoundfile(path, kind, tags) if kind in LOSSLESS else _encoded(path, kind, tags)


def bind(path: Path, parts: Sequence[tuple[str, Path]], tags: Tags) -> None:
    """Join (title, lossless file) chapters into one M4B file."""
    info = import_optional("soundfile", "info")
    ends = np.cumsum([info(part).frames for _, part in parts]).tolist()
    chapters = [
        {"id": at, "start": start, "end": end, "time_base": Fraction(1, SAMPLE_RATE), "metadata": {"title": title}}
        for at, ((title, _), start, end) in enumerate(zip(parts, [0, *ends], ends, strict=False))
    ]
    with contextlib.closing(_encoded(path, BOUND, tags, chapters)) as file:
        for _, part in parts:
            for samples in _blocks(part):
                file.write(samples)


def _encoded(path: Path, kind: str, tags: Tags, chapters: Sequence[dict] = ()) -> EncodedFile:
    is_bound, cover = kind == BOUND, tags.details.cover
    options = PLAIN | ({"movflags": "+faststart"} if is_bound else {})
    named = tags.of_ffmpeg() | ({"media_type": "2"} if is_bound and tags.details != BookDetails() else {})  # audiobook
    return EncodedFile(str(path), kind, named, chapters, options, cover=cover)


def seconds_of(path: Path) -> float:
    """Return the length of a sound file written by this module."""
    if path.suffix[1:] in LOSSLESS:
        return import_optional("soundfile", "info")(path).duration
    with import_optional("av", "open")(str(path)) as file:
        return (file.duration or 0) / 1e6


def opens(path: Path) -> bool:
    """True if sound can be read from a file written by this module, up to the end of a lossless one."""
    if path.suffix[1:] in LOSSLESS:
        try:
            return len(import_optional("soundfile", "read")(path, start=-1)[0]) > 0
        except RuntimeError:  # soundfile's own
            return False
    try:
        with import_optional("av", "open")(str(path)) as file:
            return bool(file.streams.audio) and next(file.decode(audio=0), None) is not None
    except import_optional("av", "FFmpegError"):
        return False


def _blocks(path: Path) -> Iterable[np.ndarray]:
    with import_optional("soundfile", "SoundFile")(path) as file:
        while len(samples := _block(file, path)):
            yield samples


def _block(file: Any, path: Path) -> np.ndarray:
    try:
        return file.read(_BLOCK, dtype="int16")
    except RuntimeError as error:  # soundfile's own
        raise HiggsError(
            f"{path} is damaged ({error}). Delete it and run again: only its chapter is made again."
        ) from error


class _Checked(io.FileIO):
    """Keeps a write's error: libsndfile does not report it, and not at all for the last write."""

    failed: BaseException | None = None

    def write(self, data: Any) -> int:
        written = 0
        try:
            while self.failed is None and written < len(data):
                written += super().write(data[written:])
        except (OSError, KeyboardInterrupt) as error:  # libsndfile would lose it
            self.failed = error
        return written


class BySoundfile:
    """Writes samples [n] or [n, C], int16 or float32, at any rate, in any of libsndfile's formats."""

    def __init__(self, path: Path, kind: str, tags: Tags, rate: int = SAMPLE_RATE, channels: int = 1):
        self._raw = _Checked(path, "w+")
        try:
            self._file = import_optional("soundfile", "SoundFile")(self._raw, "w", rate, channels, format=kind.upper())
        except RuntimeError as error:  # soundfile's own
            self._raw.close()
            raise self._raw.failed or OSError(str(error)) from error
        for name, value in tags.of_soundfile().items():
            setattr(self._file, name, value)

    def write(self, samples: np.ndarray) -> None:
        with self._errors():
            for start in range(0, len(samples), _BLOCK):  # libsndfile's stack is too small for hours of Vorbis
                self._file.write(samples[start : start + _BLOCK])

    def close(self) -> None:
        with self._raw, self._errors():
            self._file.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, AssertionError) as error:  # soundfile asserts that all was written
            raise self._raw.failed or OSError(str(error)) from error
        if self._raw.failed:
            raise self._raw.failed
