"""Chunks between our own servers and clients: a line of JSON, and behind it codes and samples as they are.

A client has planned the chunk, and the server answers with its codes, its samples, and what the check found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core.codes import CODE_VOCAB
from ...core.config import FRAME_SAMPLES, MOST_VOICE_FRAMES, SamplingParams
from ...core.errors import HiggsError, shown
from ...core.sequence import Sequence
from ...speech.verdict import DOUBTS, Doubt, Passage, Verdict
from ...voice.clip import Wave
from ...voice.voice import Voice
from .prompts import NAMED

VERSION = 1
CHUNK, VOICE = "/v1/higgs-tts/chunk", "/v1/higgs-tts/voice"
MEDIA = "application/vnd.higgs-tts"
MOST_HEAD = 1 << 20  # bytes of a line of an answer
_MOST_WARNINGS = 100
_PLAIN = ("chunk_seconds", "paragraph_gap", "turn_gap", "retries", "check")  # settings of whoever plans the chunks
_PARAMS = [field.name for field in fields_of(SamplingParams) if field.name not in _PLAIN]


@dataclass(frozen=True)
class Wire:
    """Description of a server's model, from which another machine can plan chunks.

    codec: of its voices. fingerprint: see `Planner`. kind: equal for servers with the same samples; empty if no other
    has them.
    """

    context: int
    codebooks: int
    codec: str
    fingerprint: str
    kind: str = ""
    chunk_seconds: float = math.inf

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that `wire_of` reads."""
        seconds = None if self.chunk_seconds == math.inf else self.chunk_seconds
        own = {field.name: getattr(self, field.name) for field in fields_of(self)}
        return {"version": VERSION, **own, "chunk_seconds": seconds}


class WirePiece(NamedTuple):
    """The next part of a chunk's answer: all frames so far, and new samples [n] float32.

    cleared: samples that a listener may hear; None: all. codes [T, K]: of a complete chunk; None before.
    """

    frames: int
    wav: torch.Tensor
    cleared: int | None = None
    codes: torch.Tensor | None = None
    ended: bool = False
    verdict: Verdict | None = None


class ChunkOrder(NamedTuple):
    """A chunk as a client asks for it. voice: a server's voice by its name, or codes. codes: only to be heard."""

    text: str
    voice: Voice | str | None
    scene: str | None
    params: SamplingParams
    index: int
    budget: int
    checked: bool
    listened: bool
    model: str
    codes: torch.Tensor | None
    ended: bool


def wire_of(fields: object) -> Wire | None:
    """Read `Wire.as_json`. None for another version, or if a value is wrong."""
    if not isinstance(fields, Mapping) or fields.get("version") != VERSION:
        return None
    try:
        seconds = math.inf if fields.get("chunk_seconds") is None else float(fields["chunk_seconds"])
        codec, fingerprint, kind = (_text(fields, name) or "" for name in ("codec", "fingerprint", "kind"))
        context, codebooks = _int(fields, "context", 1, 1 << 20), _int(fields, "codebooks", 1, 64)
        return Wire(context, codebooks, codec, fingerprint, kind, seconds) if fingerprint and seconds > 0 else None
    except (HiggsError, TypeError, ValueError, KeyError):
        return None


def pack(head: Mapping[str, Any], *parts: torch.Tensor | None) -> bytes:
    """Return a line of JSON, with codes as 16-bit and samples as 32-bit numbers behind it."""
    given = [part.numpy() for part in parts if part is not None]
    blobs = (part.astype("<f4" if part.dtype.kind == "f" else "<i2").tobytes() for part in given)
    return b"".join([json.dumps(head).encode(), b"\n", *blobs])


def pack_order(sequence: Sequence, model: str) -> bytes:
    """Return a request for a chunk. One that is finished already is only to be heard."""
    voice = sequence.voice if isinstance(sequence.voice, Voice) else None
    codes = torch.cat(sequence.codes) if sequence.finished else None
    of_codes = codes is not None and {"frames": len(codes), "codebooks": codes.shape[1], "ended": sequence.ended}
    of_voice = voice and {"frames": len(voice.codes), "codebooks": voice.codes.shape[1], "transcript": voice.transcript}
    head = {
        "version": VERSION,
        "model": model,
        "text": sequence.text,
        "scene": sequence.scene,
        "index": sequence.index,
        "budget": sequence.budget,
        "params": {name: getattr(sequence.params, name) for name in _PARAMS},
        "check": sequence.checked,
        "listened": sequence.listened,
        "voice": voice.name if voice and voice.codec == NAMED else of_voice,
        "codes": of_codes or None,
    }
    return pack(head, None if isinstance(head["voice"], str) or voice is None else voice.codes, codes)


def unpacked(data: bytes) -> tuple[Mapping[str, Any], bytes]:
    """Return a request's line of JSON, and what is behind it. Raises HiggsError."""
    line, _, rest = data.partition(b"\n")
    return _object(line), rest


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        raise HiggsError("its first line is not JSON.") from None
    if not isinstance(head, Mapping):
        raise HiggsError("its first line is not a JSON object.")
    return head


def check_version(head: Mapping[str, Any]) -> None:
    if (theirs := head.get("version")) != VERSION:
        raise HiggsError(
            f"this server speaks version {VERSION} of the pack's own protocol, but the caller speaks version "
            f"{shown(theirs)}. Install the same version of ComfyUI-Higgs-TTS on both."
        )


def read_order(data: bytes) -> ChunkOrder:
    """Parse a request for a chunk. Raises HiggsError that says what is wrong."""
    head, rest = unpacked(data)
    check_version(head)
    voice, codes = head.get("voice"), head.get("codes")
    if isinstance(voice, Mapping):
        made, rest = _codes(voice, rest, MOST_VOICE_FRAMES)
        voice = Voice(made, _text(voice, "transcript"))
    elif voice is not None and not isinstance(voice, str):
        raise HiggsError("voice must be a name, or the size of its codes.")
    made_codes, ended = None, False
    if codes is not None:
        if not isinstance(codes, Mapping):
            raise HiggsError("codes must be their size.")
        made_codes, rest = _codes(codes, rest, MOST_VOICE_FRAMES)
        ended = _bool(codes, "ended")
    if rest:
        raise HiggsError("it is longer than it says.")
    return ChunkOrder(
        _text(head, "text") or "",
        voice,
        _text(head, "scene"),
        _params(head.get("params")),
        _int(head, "index", 0, 1 << 31),
        _int(head, "budget", -(1 << 31), 1 << 31),
        _bool(head, "check"),
        _bool(head, "listened"),
        _text(head, "model") or "",
        made_codes,
        ended,
    )


def _params(values: object) -> SamplingParams:
    if not isinstance(values, Mapping) or values.keys() - set(_PARAMS):
        raise HiggsError(f"params must be an object with {', '.join(_PARAMS)}.")
    for name, value in values.items():
        usual = getattr(SamplingParams, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not isinstance(usual, bool)
        if not ((is_number and (isinstance(usual, float) or isinstance(value, int))) or type(value) is type(usual)):
            raise HiggsError(f"{name} is {shown(value)}.")
    return SamplingParams(**values)


def pack_clip(wav: Wave, sample_rate: int, transcript: str | None) -> bytes:
    """Return a request to encode a clip [S] or [C, S]."""
    clip = torch.as_tensor(wav).detach().to("cpu", torch.float32)
    clip = clip if clip.ndim == 2 else clip[None]
    head = {"version": VERSION, "sample_rate": sample_rate, "channels": len(clip), "transcript": transcript}
    return pack(head, clip.contiguous())


def read_clip_order(data: bytes) -> tuple[torch.Tensor, int, str]:
    """Parse `pack_clip`: (clip [C, S], sample rate, transcript). Raises HiggsError."""
    head, rest = unpacked(data)
    check_version(head)
    channels, rate = _int(head, "channels", 1, 64), _int(head, "sample_rate", 1, 1 << 20)
    if not rest or len(rest) % (4 * channels):
        raise HiggsError("the clip is not as long as it says.")
    return _samples(rest).view(channels, -1), rate, _text(head, "transcript") or ""


def pack_voice(voice: Voice) -> bytes:
    size = {"frames": len(voice.codes), "codebooks": voice.codes.shape[1]}
    return pack({**size, "codec": voice.codec, "warnings": list(voice.warnings)}, voice.codes)


def read_voice(data: bytes, transcript: str | None, name: str) -> Voice:
    """Parse `pack_voice`. Raises HiggsError."""
    head, rest = unpacked(data)
    codes, _ = _codes(head, rest, MOST_VOICE_FRAMES)
    warnings = head.get("warnings")
    if not isinstance(warnings, list) or len(warnings) > _MOST_WARNINGS:
        raise HiggsError("it has no list of warnings.")
    return Voice(codes, transcript, name, _text(head, "codec") or "", tuple(map(str, warnings)))


def pack_piece(piece: WirePiece) -> bytes:
    """Return a part of the answer. One with codes is the last."""
    head: dict[str, Any] = {"frames": piece.frames, "samples": len(piece.wav), "cleared": piece.cleared}
    if piece.codes is not None:
        size = {"frames": len(piece.codes), "codebooks": piece.codes.shape[1]}
        head |= {"codes": size, "ended": piece.ended, "verdict": piece.verdict and _verdict_json(piece.verdict)}
    return pack(head, piece.wav, piece.codes)


def piece_sizes(line: bytes) -> tuple[Mapping[str, Any], int]:
    """Return a part's line of JSON, and the number of bytes behind it. Raises HiggsError."""
    head = _object(line)
    size = 4 * _int(head, "samples", 0, MOST_VOICE_FRAMES * FRAME_SAMPLES) if "samples" in head else 0
    if isinstance(codes := head.get("codes"), Mapping):
        size += 2 * _int(codes, "frames", 0, MOST_VOICE_FRAMES) * _int(codes, "codebooks", 1, 64)
    return head, size


def read_piece(head: Mapping[str, Any], data: bytes, codebooks: int) -> WirePiece:
    """Parse a part of an answer, as sized by `piece_sizes`. Raises HiggsError."""
    frames, samples = _int(head, "frames", 0, MOST_VOICE_FRAMES), 4 * _int(head, "samples", 0, 1 << 31)
    cleared = None if head.get("cleared") is None else _int(head, "cleared", 0, 1 << 31)
    if len(data) < samples:
        raise HiggsError("it is shorter than it says.")
    wav = _samples(data[:samples])
    if not bool(wav.isfinite().all()):
        raise HiggsError("its samples are not numbers.")
    if (size := head.get("codes")) is None:
        return WirePiece(frames, wav, cleared)
    if not isinstance(size, Mapping) or size.get("codebooks") != codebooks:
        raise HiggsError(f"its codes are not of {codebooks} codebooks.")
    codes, _ = _codes(size, data[samples:], MOST_VOICE_FRAMES)
    verdict = None if head.get("verdict") is None else _verdict(head["verdict"])
    return WirePiece(frames, wav, cleared, codes, _bool(head, "ended"), verdict)


def _samples(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))


def _codes(size: Mapping[str, Any], data: bytes, most: int) -> tuple[torch.Tensor, bytes]:
    """Return codes [T, K] int64 of a size, and what is behind them."""
    frames, codebooks = _int(size, "frames", 0, most), _int(size, "codebooks", 1, 64)
    count = 2 * frames * codebooks
    if len(data) < count:
        raise HiggsError("it is shorter than it says.")
    codes = torch.from_numpy(np.frombuffer(data[:count], "<i2").astype(np.int64)).view(frames, codebooks)
    if frames and not 0 <= int(codes.min()) <= int(codes.max()) < CODE_VOCAB:
        raise HiggsError(f"its codes do not lie in 0..{CODE_VOCAB - 1}.")
    return codes, data[count:]


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    passages = [[*one.sentences, *one.frames, list(map(_doubt_json, one.doubts))] for one in verdict.passages]
    own = {"method": verdict.method, "starts": verdict.starts, "fixed": verdict.fixed}
    return {**own, "passages": passages, "heard": list(map(_doubt_json, verdict.heard))}


def _doubt_json(doubt: Doubt) -> list[Any]:
    return [doubt.kind, doubt.text, *doubt.words, *doubt.frames]


def _verdict(value: Any) -> Verdict:
    try:
        starts = _numbers(value["starts"])
        passages = tuple(
            Passage(_pair(one[0:2]), _pair(one[2:4]), _doubts(one[4])) for one in value["passages"] if len(one) == 5
        )
        fixed, early = _numbers([value["fixed"]])[0], _doubts(value["heard"])
        sentences = [number for passage in passages for number in passage.sentences]
        if list(starts) != sorted(starts) or sentences != sorted(sentences) or max(sentences, default=0) > len(starts):
            raise ValueError
        return Verdict(str(value["method"]), starts, passages, fixed, early)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        raise HiggsError("its verdict cannot be read.") from None


def _doubts(entries: Iterable[Any]) -> tuple[Doubt, ...]:
    doubts = tuple(Doubt(str(one[0]), str(one[1]), _pair(one[2:4]), _pair(one[4:6])) for one in entries)
    if any(doubt.kind not in DOUBTS for doubt in doubts):
        raise ValueError
    return doubts


def _pair(numbers: Any) -> tuple[int, int]:
    first, last = _numbers(numbers)
    return first, last


def _numbers(numbers: Any) -> tuple[int, ...]:
    if not all(type(one) is int and 0 <= one <= MOST_VOICE_FRAMES for one in numbers):
        raise ValueError
    return tuple(numbers)


def _int(fields: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not low <= value <= high:
        raise HiggsError(f"{name} is {shown(value)}. It must be a whole number from {low} to {high}.")
    return value


def _bool(fields: Mapping[str, Any], name: str) -> bool:
    if not isinstance(value := fields.get(name), bool):
        raise HiggsError(f"{name} must be true or false.")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise HiggsError(f"{name} must be a string.")
    return value
