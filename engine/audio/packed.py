"""Sound that soundfile cannot read, such as m4a, mp4, webm and 3gp, by PyAV."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.errors import HiggsError
from ..core.optional import import_optional

# FFmpeg's demuxers. Not those of playlists, which open other files and addresses.
_FORMATS = (
    "aac,ac3,aiff,amr,ape,asf,avi,caf,dts,eac3,flac,flv,matroska,mov,mp3,mp4,mpeg,mpegts,mxf,ogg,rm,tta,w64,wav,webm,wv"
)
# Called with (Hz, channels, seconds) by the header, then as sound is decoded; raises to refuse it.
Check = Callable[[int, int, float], None]


def read_packed(file: Path | BinaryIO, check: Check) -> tuple[np.ndarray, int]:
    """Decode the first audio track as (wav [C, n] float32, Hz). Raises RuntimeError with the reason if it cannot."""
    with _opened(file) as (container, track):
        samples = bytearray()  # interleaved; grows without a second copy, whatever the header claims
        rate, channels = track.codec_context.sample_rate, track.codec_context.layout.nb_channels or 1
        check(rate, channels, _seconds(container, track))
        to_floats = import_optional("av", "AudioResampler")(format="flt")
        for frame in container.decode(track):
            rate, channels = frame.sample_rate, frame.layout.nb_channels
            for part in to_floats.resample(frame):
                samples += part.to_ndarray().tobytes()
            check(rate, channels, len(samples) / (4 * channels * rate))
    return np.frombuffer(samples, np.float32).reshape(-1, channels).T, rate


def packed_seconds(file: Path | BinaryIO, check: Check) -> float:
    """Return the seconds of the first audio track. Decodes it if the header does not tell them, like `read_packed`."""
    with _opened(file) as (container, track):
        if seconds := _seconds(container, track):
            return seconds
    wav, rate = read_packed(file, check)
    return wav.shape[1] / rate


def _seconds(container: Any, track: Any) -> float:
    """Return what the header tells, or 0."""
    if container.format.name == "aac":  # has no such header, and FFmpeg guesses
        return 0.0
    if track.duration:
        return float(track.duration * track.time_base)
    return (container.duration or 0) / 1e6


@contextlib.contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[tuple[Any, Any]]:
    try:
        open_file, error_kind = import_optional("av", "open"), import_optional("av", "FFmpegError")
    except HiggsError as error:
        raise RuntimeError("for all but WAV, FLAC, MP3, OGG and AIFF it takes PyAV: pip install av") from error
    if not isinstance(file, Path):
        file.seek(0)
    given = str(file) if isinstance(file, Path) else file
    try:
        with open_file(given, options={"format_whitelist": _FORMATS}) as container:
            if not container.streams.audio:
                raise RuntimeError("it has no sound")
            track = container.streams.audio[0]
            if track.codec_context is None:
                raise RuntimeError("its sound is of an unknown format")
            yield container, track
    except (error_kind, ValueError) as error:  # ValueError: the number of channels or the rate changes
        raise RuntimeError("it is damaged, or of an unknown format") from error
