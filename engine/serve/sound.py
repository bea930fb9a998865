"""Encoders for the audio formats of OpenAI's API, whole or streamed."""

from __future__ import annotations

import io
import struct

import torch

from ..audio.encoded import PLAIN, EncodedFile
from ..audio.mastering import AS_IS, TARGETS, master
from ..audio.pcm import pcm_bytes, to_int16
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional

FORMATS = {  # name -> media type
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
_FILES = {"mp3": ("MP3", None), "wav": ("WAV", "PCM_16"), "flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS")}
_OPTIONS = PLAIN | {"flush_packets": "1"}
_PAGE = {"page_duration": "200000"}  # microseconds of Opus in a page; FFmpeg's default is a second
_UNKNOWN = 0xFFFFFFFF  # size of a WAV in progress: players read to the end
_WAV_HEAD = b"RIFF" + struct.pack("<I", _UNKNOWN) + b"WAVEfmt "
_WAV_HEAD += struct.pack("<IHHIIHH4sI", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16, b"data", _UNKNOWN)


def can_encode(sound: str) -> bool:
    """True if a format of FORMATS can be made here: aac takes PyAV."""
    try:
        return sound in _FILES or sound == "pcm" or callable(import_optional("av", "open"))
    except HiggsError:
        return False


def encoded(wav: torch.Tensor, sound: str, loudness: str = AS_IS) -> bytes:
    """Encode wav [n] float32 as a whole file of FORMATS, at a loudness of TARGETS."""
    if target := TARGETS[loudness]:
        wav = master(wav[None], SAMPLE_RATE, target)[0][0]
    if sound == "pcm":
        return pcm_bytes(wav)
    if sound not in _FILES:
        encoder = _Compressed(sound)
        return encoder.encode(wav) + encoder.end()
    kind, subtype = _FILES[sound]
    buffer = io.BytesIO()
    import_optional("soundfile", "write")(buffer, wav.numpy(), SAMPLE_RATE, format=kind, subtype=subtype)
    return buffer.getvalue()


class Encoder:
    """Passes samples through, after the file's header if there is one."""

    is_slow = False  # True if encoding should run outside the event loop

    def __init__(self, head: bytes = b""):
        self._head = head

    def encode(self, wav: torch.Tensor) -> bytes:
        """Encode the next samples [n] float32. May return no bytes."""
        head, self._head = self._head, b""
        return head + pcm_bytes(wav)

    def end(self) -> bytes:
        """Return the file's last bytes."""
        return self._head


class _Made(bytearray):
    """A write-only file without seek, so FFmpeg cannot patch what has been sent."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self)
        self.clear()
        return taken


class _Compressed(Encoder):
    """Encodes a codec's frames with PyAV."""

    is_slow = True

    def __init__(self, sound: str):
        options = _OPTIONS | (_PAGE if sound == "opus" else {})
        self._made = _Made()
        self._file = EncodedFile(self._made, sound, options=options)

    def encode(self, wav: torch.Tensor) -> bytes:
        self._file.write(to_int16(wav).numpy())
        return self._made.take()

    def end(self) -> bytes:
        self._file.close()
        return self._made.take()


class _AtEnd(Encoder):
    """Encodes the whole file at the end."""

    is_slow = True

    def __init__(self, sound: str):
        self._sound, self._wavs = sound, [torch.empty(0)]

    def encode(self, wav: torch.Tensor) -> bytes:
        self._wavs.append(wav)
        return b""

    def end(self) -> bytes:
        return encoded(torch.cat(self._wavs), self._sound)


def encoder_of(sound: str) -> Encoder:
    """Return an encoder of FORMATS. Without PyAV, mp3, flac and opus come whole at the end."""
    if sound in ("wav", "pcm"):
        return Encoder(_WAV_HEAD if sound == "wav" else b"")
    try:
        return _Compressed(sound)
    except HiggsError:  # PyAV is missing or broken
        return _AtEnd(sound)
