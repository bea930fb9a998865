"""A server that speaks: what it is asked, in the words that it knows, and what its answers are."""

from __future__ import annotations

import base64
import hashlib
import io
import wave
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from .. import pcm
from ..config import FRAME_RATE, SAMPLE_RATE
from ..errors import HiggsError
from ..prompt.card import Card
from ..resample import resample
from ..voice.clip import MIN_CLIP_SECONDS, decode_clip
from ..voice.voice import Voice
from .address import Address
from .connections import Answer, Connections
from .errors import Failing, Refusal, error_of, no_sound
from .prompts import NAMED, RemoteSequence

SPEECH = "/v1/audio/speech"
HOSTED_CHARACTERS = 5000  # of one input; longer ones get a 400
_MOST_SECONDS = 1800.0  # of one answer
_SEEDS = 1 << 31  # SGLang-Omni keeps as much of one
_DELAY = 8  # frames short of the limit that speech may be which was cut there: some count the delay's columns


class Kind(Enum):
    """Who made a server."""

    OURS = "Higgs TTS"
    SGLANG = "SGLang-Omni"
    VLLM = "vLLM-Omni"
    HOSTED = "Boson's hosted API"
    OTHER = "a server of another kind"


class Spoken(NamedTuple):
    """A chunk's sound as frames of samples int16 [T, FRAME_SAMPLES], and whether it ended by itself."""

    frames: torch.Tensor
    ended: bool


@dataclass(frozen=True, eq=False)
class Server:
    """One that answers. card: what its model has learned, as far as it says."""

    address: Address
    kind: Kind
    model: str = ""
    card: Card = Card()

    @property
    def label(self) -> str:
        """In words for users."""
        return f"{self.kind.value} at {self.address.label}"

    @property
    def lacks(self) -> str:
        """What it cannot do, as a sentence that goes on from its name; empty where it can do all."""
        if self.kind is Kind.HOSTED:
            return "takes no seed, no sampling settings and no limit of frames: each run sounds different."
        if self.kind is Kind.OTHER:
            return "is not known here: it may ignore seed, sampling settings and reference clips."
        return ""

    def body(self, said: RemoteSequence) -> dict[str, Any]:
        """The call's JSON. Sampling stands in it twice, for vLLM-Omni drops what it does not find in extra_params."""
        body: dict[str, Any] = {"input": said.content, "response_format": "wav"}
        if self.model:
            body["model"] = self.model
        if isinstance(said.voice, Voice):
            body |= _voice_fields(said.voice, said.transcript)
        if self.kind is Kind.HOSTED:
            if len(said.content) > HOSTED_CHARACTERS:
                raise Refusal(
                    f"takes {HOSTED_CHARACTERS} characters at a time, and a chunk has {len(said.content)}. "
                    "Set chunk_seconds above 0, so that the text is split."
                )
            return body
        params = said.params
        sampling = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
        body["max_new_tokens"] = params.max_frames
        if self.kind is Kind.OURS:
            body |= {**sampling, "seed": params.seed, "index": said.index, "retries": 0}
            body["stream"] = False  # with the sound's length, and how it ended
            return body | ({"scene": said.scene} if said.scene else {})
        sampling["top_k"] = params.top_k or -1  # how these turn it off
        return body | sampling | {"extra_params": sampling, "seed": foreign_seed(params.seed, said.index)}

    def speak(self, said: RemoteSequence, connections: Connections, seconds: float) -> Spoken:
        """One call. Raises what errors.py has, and Broken."""
        answer = connections.ask(self.address, "POST", SPEECH, self.body(said), seconds)
        if answer.status != 200:
            raise error_of(answer, self.address.variable)
        frames = pcm.to_frames(_sound(answer))
        if not len(frames):
            raise Failing("answered with a sound of no length.")
        reason = answer.headers.get("X-Finish-Reason")
        ended = len(frames) < said.params.max_frames - _DELAY if reason is None else reason != "length"
        return Spoken(frames, ended)


def foreign_seed(seed: int, index: int) -> int:
    """A seed for servers that know no index: the chunks of a text have the same seed, and need noise of their own."""
    if not index and seed < _SEEDS:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "big") % _SEEDS


def _voice_fields(voice: Voice, transcript: str) -> dict[str, str]:
    if voice.codec == NAMED:
        return {"voice": voice.name}
    least = round(MIN_CLIP_SECONDS * FRAME_RATE)  # a first chunk may be shorter than servers take clips
    frames = torch.nn.functional.pad(voice.codes, (0, 0, 0, max(0, least - len(voice.codes))))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes(frames.reshape(-1).numpy().astype("<i2").tobytes())
    clip = {"ref_audio": f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"}
    return clip | ({"ref_text": transcript} if transcript else {})


def _sound(answer: Answer) -> torch.Tensor:
    """An answer's sound, [n] float32 at SAMPLE_RATE."""
    try:
        wav, rate = decode_clip(answer.body, _MOST_SECONDS, "The sound")
    except RuntimeError as error:  # soundfile's own
        raise no_sound(answer) from error
    except HiggsError as error:
        raise Failing(f"answered with sound that cannot be used. {error}") from error
    mono = wav.mean(dim=0)
    if not bool(mono.isfinite().all()):
        raise Failing("answered with sound that holds values that are not numbers.")
    return resample(mono, rate, SAMPLE_RATE)
