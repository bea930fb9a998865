"""Sound files written as a book is spoken: FLAC and WAV by soundfile, MP3 and M4B by PyAV."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional

BOUND = "m4b"  # one file with all chapters
LOSSLESS = ("flac", "wav")
_CODECS = {"mp3": ("mp3", "libmp3lame"), BOUND: ("ipod", "aac")}  # suffix -> FFmpeg's container and encoder
_BIT_RATE = 64_000  # transparent for one voice at 24 kHz
_BLOCK = SAMPLE_RATE * 10  # samples read at a time


@dataclass(frozen=True)
class Tags:
    """Metadata for players. Empty fields are left out."""

    title: str
    album: str = ""
    artist: str = ""
    track: int = 0


class SoundFile(Protocol):
    """An open file for samples [n] int16, one channel, 24 kHz."""

    def write(self, samples: np.ndarray) -> None: ...

    def close(self) -> None: ...


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


def open_sound(path: Path, kind: str, tags: Tags) -> SoundFile:
    """Open a new file of that kind, whatever its suffix. Raises OSError."""
    return BySoundfile(path, kind, tags) if kind in LOSSLESS else _Encoded(path, kind, tags)


def bind(path: Path, parts: Sequence[tuple[str, Path]], tags: Tags) -> None:
    """Join (title, lossless file) chapters into one M4B file."""
    info = import_optional("soundfile", "info")
    ends = np.cumsum([info(part).frames for _, part in parts]).tolist()
    chapters = list(zip((title for title, _ in parts), [0, *ends], ends, strict=False))
    file = _Encoded(path, BOUND, tags, chapters)
    try:
        for _, part in parts:
            for samples in _blocks(part):
                file.write(samples)
    finally:
        file.close()


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
    """A SoundFile for samples [n] or [n, C], int16 or float32, at any rate, in any of libsndfile's formats."""

    def __init__(self, path: Path, kind: str, tags: Tags, rate: int = SAMPLE_RATE, channels: int = 1):
        self._raw = _Checked(path, "w+")
        try:
            self._file = import_optional("soundfile", "SoundFile")(self._raw, "w", rate, channels, format=kind.upper())
        except RuntimeError as error:  # soundfile's own
            self._raw.close()
            raise self._raw.failed or OSError(str(error)) from error
        names = {"title": tags.title, "album": tags.album, "artist": tags.artist}
        for name, value in {**names, "tracknumber": str(tags.track or "")}.items():
            if value:
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


class _Encoded:
    """Writes with PyAV. chapters: (title, first sample, end) of each."""

    def __init__(self, path: Path, kind: str, tags: Tags, chapters: Iterable[tuple[str, int, int]] = ()):
        container, codec = _CODECS[kind]
        # No dates or versions inside: equal sound gives equal files.
        options = {"fflags": "+bitexact"} | ({"movflags": "+faststart"} if kind == BOUND else {})
        self._failed = False
        self._file = import_optional("av", "open")(str(path), "w", format=container, options=options)
        self._to_frame = import_optional("av", "AudioFrame").from_ndarray
        self._stream = self._file.add_stream(codec, rate=SAMPLE_RATE, layout="mono")
        self._stream.bit_rate = _BIT_RATE
        metadata = {"title": tags.title, "album": tags.album, "artist": tags.artist, "track": str(tags.track or "")}
        self._file.metadata.update({name: value for name, value in metadata.items() if value})
        made = [
            {"id": at, "start": start, "end": end, "time_base": Fraction(1, SAMPLE_RATE), "metadata": {"title": title}}
            for at, (title, start, end) in enumerate(chapters)
        ]
        if made:
            self._file.set_chapters(made)

    def write(self, samples: np.ndarray) -> None:
        for start in range(0, len(samples), _BLOCK):
            frame = self._to_frame(np.ascontiguousarray(samples[None, start : start + _BLOCK]), "s16", "mono")
            frame.sample_rate = SAMPLE_RATE
            try:
                self._file.mux(self._stream.encode(frame))
            except OSError:
                self._failed = True
                raise

    def close(self) -> None:
        try:
            if not self._failed:  # FFmpeg crashes on packets after a header that could not be written
                self._file.mux(self._stream.encode(None))
        finally:
            self._file.close()
