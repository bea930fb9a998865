"""Sound encoded by PyAV, to a file or to memory."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional
from .pcm import to_int16
from .resample import resample

# Kind -> FFmpeg's container and encoder.
ENCODERS = {
    "flac": ("flac", "flac"),
    "wav": ("wav", "pcm_s16le"),
    "mp3": ("mp3", "libmp3lame"),
    "ogg": ("ogg", "libopus"),
    "opus": ("ogg", "libopus"),
    "aac": ("adts", "aac"),
    "m4b": ("ipod", "aac"),
}
SOUND_FILES = {"flac": 0, "wav": 0, "mp3": 128_000, "ogg": 96_000, "m4b": 96_000}  # -> bits per second; 0: lossless
PLAIN = {"fflags": "+bitexact"}  # no dates or versions inside: equal sound gives equal files
# Two letters of a language -> three, which MP4 files have.
_TWO = "ar bg ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nb nl no pl pt ro ru sk sl sr sv th tr uk"
_THREE = (
    "ara bul cat ces dan deu ell eng spa est fas fin fra heb hin hrv hun ind ita jpn kor lit lav nob nld nor pol por "
    "ron rus slk slv srp swe tha tur ukr"
)
_LANGUAGES: dict[str, str] = dict(zip(_TWO.split(), _THREE.split(), strict=True)) | {"vi": "vie", "zh": "zho"}
_VOICE = 64_000  # bits per second, transparent for one voice at 24 kHz
_BLOCK = SAMPLE_RATE * 10  # samples encoded at a time
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


class EncodedFile:
    """Writes samples [n] or [n, C] int16 to a path or an open file.

    tags: metadata by FFmpeg's names. chapters: as PyAV has them. options: of FFmpeg's container. cover: a JPEG or PNG
    file, for m4b and mp3.
    """

    def __init__(
        self,
        file: Any,
        kind: str,
        tags: Mapping[str, str] = MappingProxyType({}),
        chapters: Sequence[Mapping[str, object]] = (),
        options: Mapping[str, str] = MappingProxyType({}),
        *,
        form: tuple[int, int, int] = (SAMPLE_RATE, 1, _VOICE),  # Hz, channels, bits per second
        cover: bytes = b"",
    ):
        container, codec = ENCODERS[kind]
        if cover and kind == "m4b":  # FFmpeg takes a cover in mp4 only, which is the same but for its brand
            container, options = "mp4", {**options, "brand": "M4B "}
        (self._rate, channels, bits), self._failed = form, False
        self._file = import_optional("av", "open")(file, "w", format=container, options=dict(options))
        self._to_frame = import_optional("av", "AudioFrame").from_ndarray
        self._layout = "mono" if channels == 1 else "stereo"
        self._stream = self._file.add_stream(codec, rate=self._rate, layout=self._layout)
        if bits:
            self._stream.bit_rate = bits
        self._file.metadata.update(tags)
        if language := _LANGUAGES.get(tags.get("language", "")[:2].lower()):
            self._stream.metadata["language"] = language
        self._cover = self._add(cover) if cover else None
        if chapters:
            self._file.set_chapters(list(chapters))

    def _add(self, cover: bytes) -> Any:
        """Add a stream for the cover, and return its packet."""
        with import_optional("av", "open")(io.BytesIO(cover)) as picture:
            packet = next(picture.demux(picture.streams.video[0]))
            stream = self._file.add_stream_from_template(picture.streams.video[0])
        stream.disposition = import_optional("av.stream", "Disposition").attached_pic
        packet.stream, packet.pts, packet.dts = stream, 0, 0
        return packet

    def write(self, samples: np.ndarray) -> None:
        for start in range(0, len(samples), _BLOCK):
            frame = self._to_frame(samples[start : start + _BLOCK].reshape(1, -1), "s16", self._layout)
            frame.sample_rate = self._rate
            try:
                if self._cover:
                    self._file.mux(self._cover)
                    self._cover = None
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


def encode_sound(wave: torch.Tensor, rate: int, kind: str, tags: Mapping[str, str]) -> bytes:
    """Encode a wave [C, n] of one or two channels at `rate` Hz as a file of a kind in SOUND_FILES.

    Raises HiggsError if PyAV is missing, or has no such encoder or not at this rate.
    """
    if kind == "ogg" and rate not in _OPUS_RATES:
        wave, rate = resample(wave, rate, _OPUS_RATES[-1]), _OPUS_RATES[-1]
    data, broken = io.BytesIO(), import_optional("av", "FFmpegError")
    form = rate, len(wave), SOUND_FILES[kind]
    try:
        with closing(EncodedFile(data, kind, tags, options=PLAIN, form=form)) as file:
            file.write(to_int16(wave).numpy().T)
    except (broken, ValueError) as error:  # ValueError: no such encoder
        raise HiggsError(f"sound at {rate} Hz could not be written as {kind} ({error}). Choose flac or wav.") from error
    return data.getvalue()
