"""Requests and responses of the supported speech servers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch

from ...audio import pcm
from ...audio.resample import resample
from ...core.config import FRAME_RATE, FRAME_SAMPLES, SAMPLE_RATE
from ...core.errors import HiggsError
from ...prompt.card import ModelCard
from ...voice.clip import MIN_CLIP_SECONDS, decode_clip
from ...voice.voice import Voice
from .address import Address
from .connections import Answer, Broken, Connections, whole_body
from .errors import Failing, Refusal, error_of, failing, no_sound
from .prompts import NAMED, RemoteSequence
from .wire import Wire

SPEECH = "/v1/audio/speech"
HOSTED_CHARACTERS = 5000  # maximum input; longer ones get a 400
_MOST_SECONDS = 1800.0  # maximum audio per response
_SEEDS = 1 << 31  # SGLang-Omni's range of seeds
_DELAY = 8  # frames; speech cut at the limit may be this much shorter, as some servers count the delay pattern


class Kind(Enum):
    OURS = "Higgs TTS"
    SGLANG = "SGLang-Omni"
    VLLM = "vLLM-Omni"
    HOSTED = "Boson's hosted API"
    OTHER = "unknown server"


_STREAMING = (Kind.OURS, Kind.SGLANG, Kind.VLLM)  # send events while speaking
_FRAME_BYTES = 2 * FRAME_SAMPLES


class Spoken(NamedTuple):
    """Next frames of a chunk, int16 samples [T, FRAME_SAMPLES]. ended: None before the last; False if it was cut."""

    frames: torch.Tensor
    ended: bool | None = None


@dataclass(frozen=True, eq=False)
class Server:
    """A server that responds. card: languages and tags of its model, if reported. wire: of one of ours, for codes."""

    address: Address
    kind: Kind
    model: str = ""
    card: ModelCard = ModelCard()
    wire: Wire | None = None

    @property
    def label(self) -> str:
        return f"{self.kind.value} at {self.address.label}"

    @property
    def lacks(self) -> str:
        """Limitations, as a sentence that continues the server's name. Empty if there are none."""
        if self.kind is Kind.HOSTED:
            return "ignores seed, sampling settings and max_frames, so each run sounds different."
        if self.kind is Kind.OTHER:
            return "may ignore seed, sampling settings and reference clips."
        return ""

    def body(self, sequence: RemoteSequence) -> dict[str, Any]:
        """Return the request's JSON. Sampling is in it twice, because vLLM-Omni reads it only from extra_params."""
        body: dict[str, Any] = {"input": sequence.content, "response_format": "wav"}
        if sequence.listened and self.kind in _STREAMING:
            body |= {"response_format": "pcm", "stream": True, "stream_format": "sse"}
        if self.model:
            body["model"] = self.model
        if isinstance(sequence.voice, Voice):
            body |= _voice_fields(sequence.voice, sequence.transcript)
        if self.kind is Kind.HOSTED:
            if len(sequence.content) > HOSTED_CHARACTERS:
                raise Refusal(
                    f"accepts {HOSTED_CHARACTERS} characters at a time, but a chunk has {len(sequence.content)}. Set "
                    "chunk_seconds above 0 to split the text."
                )
            return body
        params = sequence.params
        sampling = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
        body["max_new_tokens"] = params.max_frames
        if self.kind is Kind.OURS:
            body |= {**sampling, "seed": params.seed, "index": sequence.index, "retries": 0}
            body.setdefault("stream", False)  # the response then has a length and a finish reason
            return body | ({"scene": sequence.scene} if sequence.scene else {})
        sampling["top_k"] = params.top_k or -1  # -1 disables it on these servers
        return body | sampling | {"extra_params": sampling, "seed": foreign_seed(params.seed, sequence.index)}

    def speak(self, sequence: RemoteSequence, connections: Connections, seconds: float) -> Iterator[Spoken]:
        """Make one call and yield frames, as they arrive if `said.listened` and the server streams.

        Raises the errors of errors.py, and Broken.
        """
        with connections.opened(self.address, "POST", SPEECH, self.body(sequence), seconds) as opened:
            if opened.status == 200 and opened.headers.get_content_type() == "text/event-stream":
                yield from self._streamed(sequence, events_of(opened))
                return
            answer = Answer(opened.status, opened.headers, whole_body(opened))
        if answer.status != 200:
            raise error_of(answer, self.address.variable)
        frames = pcm.to_frames(_sound(answer))
        if not len(frames):
            raise Failing("returned empty audio.")
        yield Spoken(frames, self._has_ended(sequence, len(frames), answer.headers.get("X-Finish-Reason")))

    def _streamed(self, sequence: RemoteSequence, events: Iterable[Mapping[str, Any]]) -> Iterator[Spoken]:
        """Yield frames from OpenAI speech events, which carry 16-bit PCM at SAMPLE_RATE."""
        left, count = b"", 0
        for event in events:
            kind = event.get("type")
            if kind == "speech.audio.delta":
                left += _decoded(event)
                whole = len(left) - len(left) % _FRAME_BYTES
                if whole:
                    yield Spoken(_frames(left[:whole]))
                    count, left = count + whole // _FRAME_BYTES, left[whole:]
            elif kind == "error":
                raise failing(event.get("error"))
            elif kind == "speech.audio.done":
                last = _frames(left + bytes(-len(left) % _FRAME_BYTES))
                if not count + len(last):
                    raise Failing("returned empty audio.")
                yield Spoken(last, self._has_ended(sequence, count + len(last), event.get("finish_reason")))
                return
        raise Broken("closed the connection before its answer was complete.")

    def _has_ended(self, sequence: RemoteSequence, frames: int, reason: str | None) -> bool:
        return frames < sequence.params.max_frames - _DELAY if reason is None else reason != "length"


def events_of(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield the data of server-sent events, each a JSON object on one line."""
    for line in lines:
        if line.startswith(b"data:"):
            with contextlib.suppress(ValueError, RecursionError):  # such as a final [DONE]
                if isinstance(event := json.loads(line[5:]), Mapping):
                    yield event


def _decoded(event: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(event.get("audio") or "")
    except (TypeError, ValueError) as error:
        raise Failing("returned audio that is not valid base64.") from error


def _frames(data: bytes) -> torch.Tensor:
    return pcm.to_frames(
        torch.from_numpy(np.frombuffer(data, "<i2").astype(np.float32) / 32768)
    )  # same scale as audio files


def foreign_seed(seed: int, index: int) -> int:
    """Return a seed for servers without `index`. Chunks of a text share a seed but need different noise."""
    if not index and seed < _SEEDS:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "big") % _SEEDS


def _voice_fields(voice: Voice, transcript: str) -> dict[str, str]:
    if voice.codec == NAMED:
        return {"voice": voice.name}
    least = round(MIN_CLIP_SECONDS * FRAME_RATE)  # a first chunk may be too short for servers
    frames = torch.nn.functional.pad(voice.codes, (0, 0, 0, max(0, least - len(voice.codes))))
    data = base64.b64encode(pcm.wav_bytes(frames.reshape(-1).to(torch.int16))).decode()
    clip = {"ref_audio": f"data:audio/wav;base64,{data}"}
    return clip | ({"ref_text": transcript} if transcript else {})


def _sound(answer: Answer) -> torch.Tensor:
    """Return a response's audio, [n] float32 at SAMPLE_RATE."""
    try:
        wav, rate = decode_clip(answer.body, _MOST_SECONDS, "The sound")
    except RuntimeError as error:  # from soundfile
        raise no_sound(answer) from error
    except HiggsError as error:
        raise Failing(f"returned unusable audio. {error}") from error
    mono = wav.mean(dim=0)
    if not bool(mono.isfinite().all()):
        raise Failing("returned audio with invalid values (NaN or infinity).")
    return resample(mono, rate, SAMPLE_RATE)
