"""Parse and validate the body of POST /v1/audio/speech. Imports no HTTP library and no engine.

The fields are OpenAI's, and those that both SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0 understand.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..audio.mastering import AS_IS, TARGETS
from ..core.config import MOST_CLIPS, SAMPLE_RATE, SamplingParams, range_of
from ..core.errors import HiggsError, shown_name
from ..prompt.chunking import LETTER_SECONDS
from ..prompt.script import read_pauses
from ..prompt.tags import TAG_LIKE, delivery_slot
from .sound import FORMATS, can_encode

DEFAULT_VOICE = "default"
# OpenAI's own voices, sent by programs that know no others: the model's own voice, unless a file has that name.
STOCK_VOICES = frozenset(
    [DEFAULT_VOICE, *"alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split()]
)
MOST_CLIP_BYTES = 10 << 20
_NUMBERS = {  # field -> SamplingParams field
    **{name: name for name in ("temperature", "top_p", "top_k", "seed", "retries")},
    **dict.fromkeys(("max_tokens", "max_new_tokens"), "max_frames"),
}
_PLAIN = """model input voice speaker response_format speed stream stream_format ref_audio ref_text references
extra_params scene index word_timestamps check loudness"""
_KNOWN = frozenset([*_PLAIN.split(), *_NUMBERS])
_HINTS = frozenset(["language", "suppress_bootstrap_silence", "initial_codec_chunk_frames", "non_streaming_mode"])
_NEUTRAL = {  # fields of the other servers without effect here, with values that ask for nothing
    "sample_rate": (SAMPLE_RATE,),
    "task_type": ("Base", "CustomVoice"),
    "repetition_penalty": (1,),
}
_TRANSPORT = ("audio", "sse")
_MOST_INDEX = 1 << 31
_LEADING = re.compile(rf"(?:\s*(?:{TAG_LIKE.pattern}))*")  # leading tags of a text
_SPEEDS = ((0.75, "<|prosody:speed_very_slow|>"), (0.95, "<|prosody:speed_slow|>"), (1.05, ""),
           (1.3, "<|prosody:speed_fast|>"), (4.0, "<|prosody:speed_very_fast|>"))  # fmt: skip


class BadCall(HiggsError):
    """A request that cannot be served. param: the invalid field. wait: seconds until a busy server may have room."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None, wait: int = 1
    ):
        super().__init__(message)
        self.param, self.status, self.code, self.wait = param, status, code, wait


def overloaded(wait: int) -> BadCall:
    """Return the refusal of a call beyond the limit."""
    return BadCall(f"the server has reached its limit of calls. Try again in {wait} s.", None, 503, "overloaded", wait)


@dataclass(frozen=True)
class Clip:
    """A reference sent with the call: the sound file's bytes and its transcript. more: clips of the same speaker."""

    data: bytes
    transcript: str
    more: tuple[Clip, ...] = ()

    @property
    def every(self) -> tuple[Clip, ...]:
        return self, *self.more


@dataclass(frozen=True)
class Call:
    """A text to speak, and the form of the answer."""

    text: str
    voice: str  # a name
    format: str
    clip: Clip | None = None
    stream: str = ""  # "audio", "sse", or empty for a single response
    scene: str | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    ignored: tuple[str, ...] = ()  # fields that have no effect here
    index: int = 0  # position of a part in a split text, so that equal seeds get different noise
    word_timestamps: bool = False  # the answer says when each word is heard
    model: str = ""  # as the caller calls it
    loudness: str = ""  # one of TARGETS, or empty for the server's


def read_call(body: Any, most_characters: int, knows_tag: Callable[[str], bool]) -> Call:
    """Parse a call. knows_tag(tag): True if the model follows it. Raises BadCall that names the field."""
    if not isinstance(body, Mapping):
        raise BadCall("the body must be a JSON object.")
    text = _text(body, most_characters)
    sound = _one_of(body, "response_format", FORMATS, "mp3")
    if not can_encode(sound):
        raise BadCall(
            f"{sound} needs PyAV on the server (pip install av). Choose another response_format, such as mp3.",
            "response_format",
        )
    stream, word_timestamps = _stream(body), _is_on(body, "word_timestamps")
    if word_timestamps and (body.get("stream") or stream == "sse"):
        raise BadCall(
            "word_timestamps needs a whole answer. Omit stream, or use the WebSocket /v1/audio/speech/stream.",
            "word_timestamps",
        )
    clip, voice = _clip(body), _string(body, "voice") or _string(body, "speaker") or DEFAULT_VOICE
    if clip and voice not in STOCK_VOICES:
        raise BadCall("a call may have a voice or a reference, but not both. Remove one.", "voice")
    tag = _speed_tag(body, knows_tag)
    begins = _LEADING.match(text)
    if tag and not (begins and any(delivery_slot(own[0]) == "speed" for own in TAG_LIKE.finditer(begins[0]))):
        text = tag + text
    unknown = tuple(sorted(name for name in body if name not in _KNOWN))
    index = int(_number("index", 0 if body.get("index") is None else body["index"], 0, _MOST_INDEX))
    scene = _string(body, "scene")
    bounded("scene", scene or "", most_characters)
    bounded("ref_text", " ".join(one.transcript for one in clip.every) if clip else "", most_characters)
    stream = "" if word_timestamps else stream
    model = _string(body, "model") or ""
    loudness = _loudness(body, bool(stream))
    return Call(
        text, voice, sound, clip, stream, scene, _params(body), unknown, index, word_timestamps, model, loudness
    )


def refuse_ignored(call: Call, fields: Mapping[str, Any]) -> None:
    """Check the fields of a call, in batches and streams of text, which have no header that names ignored ones.

    Raises BadCall for a field without effect. Hints and values that ask for nothing are accepted.
    """
    for name in call.ignored:
        value = fields.get(name)
        if value and name not in _HINTS and value not in _NEUTRAL.get(name, ()):
            raise BadCall(f"this server does not support {shown_name(name)}. Remove it.", name[:80])


def bounded(param: str, text: str, most_characters: int) -> None:
    """Check a text's length. Raises BadCall if it is too long."""
    if len(text) > most_characters:
        raise BadCall(
            f"{param} has {len(text)} characters, but this server accepts at most {most_characters}. Send less at a "
            "time.",
            param,
            code="input_too_long",
        )


def _text(body: Mapping, most_characters: int) -> str:
    text = body.get("input")
    if not isinstance(text, str) or not text.strip():
        raise BadCall("input must be the text to speak.", "input")
    bounded("input", text, most_characters)
    silence = sum(pause.seconds for pause in read_pauses(text).pauses)
    if len(text) + silence / LETTER_SECONDS > most_characters:
        raise BadCall(
            f"input has {len(text)} characters and {silence:g} s of pauses, which count as "
            f"{math.ceil(silence / LETTER_SECONDS)} more, but this server accepts at most {most_characters}. Send "
            "less at a time.",
            "input",
            code="input_too_long",
        )
    return text


def _stream(body: Mapping) -> str:
    """Return OpenAI's stream_format. Only `stream: false` waits for the whole; events always stream."""
    _is_on(body, "stream")
    how = _one_of(body, "stream_format", _TRANSPORT, "audio")
    return "" if body.get("stream") is False and how != "sse" else how


def _loudness(body: Mapping, streams: bool) -> str:
    name = _string(body, "loudness") and _one_of(body, "loudness", TARGETS, AS_IS)
    if streams and name not in (None, AS_IS):
        raise BadCall(
            "loudness needs a whole answer, for that of a stream is only known at its end. Send stream: false, or omit "
            "loudness.",
            "loudness",
        )
    return name or ""


def _is_on(body: Mapping, name: str) -> bool:
    if not isinstance(value := body.get(name), (bool, type(None))):
        raise BadCall(f"{name} must be true or false.", name)
    return bool(value)


def _clip(body: Mapping) -> Clip | None:
    references = body.get("references") or []
    if not isinstance(references, list) or not all(isinstance(given, Mapping) for given in references):
        raise BadCall("references must be a list of objects that have audio_path and text.", "references")
    if len(references) > MOST_CLIPS:
        raise BadCall(
            f"references has {len(references)} clips, but at most {MOST_CLIPS} can make a voice. Send the best ones.",
            "references",
        )
    if not references:
        return _decoded("ref_audio", body.get("ref_audio"), body.get("ref_text"))
    clips = [_decoded("references", _sound_of(given), given.get("text")) for given in references]
    if len(clips) > 1 and not all(clips):
        raise BadCall("a reference has no clip. Send each with its audio.", "references")
    first, *more = clips
    return replace(first, more=tuple(more)) if first and more else first


def _sound_of(reference: Mapping) -> object:
    return next((reference[name] for name in ("audio_path", "ref_audio", "audio", "data") if reference.get(name)), None)


def _decoded(param: str, sound: object, transcript: object) -> Clip | None:
    if sound is None:
        if transcript:
            raise BadCall("there is a transcript but no clip. Send the clip as well.", param)
        return None
    if not isinstance(sound, str) or not isinstance(transcript or "", str):
        raise BadCall("a reference must contain its audio, as a data URI or base64, and its text.", param)
    head, _, data = sound.partition(",") if sound.startswith("data:") else ("", "", sound)
    if head and not head.endswith(";base64"):
        raise BadCall("a data URI must be base64: data:audio/wav;base64,...", param)
    if len(data) > MOST_CLIP_BYTES * 4 // 3 + 4:
        raise BadCall(f"the clip is larger than {MOST_CLIP_BYTES >> 20} MB. Send a shorter one.", param, status=413)
    try:
        return Clip(base64.b64decode(data, validate=True), str(transcript or ""))
    except (binascii.Error, ValueError):
        raise BadCall(
            "the clip is not base64. Send the audio itself, as a data URI or base64; this server does not open paths "
            "or URLs for callers.",
            param,
        ) from None


def _params(body: Mapping) -> SamplingParams:
    """Read sampling fields from the top level or, as in vLLM-Omni, from extra_params. The top level wins."""
    extra = body.get("extra_params")
    extra = {} if extra is None else extra
    if not isinstance(extra, Mapping):
        raise BadCall("extra_params must be an object.", "extra_params")
    given_fields = {**extra, **{name: value for name, value in body.items() if value is not None}}
    given: dict[str, Any] = {}
    for name, ours in _NUMBERS.items():
        if (value := given_fields.get(name)) is not None:
            given[ours] = type(getattr(SamplingParams, ours))(_number(name, value, *range_of(SamplingParams, ours)[:2]))
    return SamplingParams(**given, check=body.get("check") is None or _is_on(body, "check"))


def _number(name: str, value: object, low: float, high: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadCall(f"{name} is {str(value)[:40]!r}. It must be a number from {low} to {high}.", name)
    if isinstance(low, int) and value != int(value):
        raise BadCall(f"{name} is {value}. It must be a whole number.", name)
    return value


def _speed_tag(body: Mapping, knows_tag: Callable[[str], bool]) -> str:
    """Return the tag closest to OpenAI's speed, 0.25 to 4. The model itself changes pace, keeping the pitch."""
    wanted = body.get("speed")
    speed = 1.0 if wanted is None else _number("speed", wanted, 0.25, 4.0)
    tag = next(tag for most, tag in _SPEEDS if speed <= most)
    if tag and not knows_tag(tag):
        raise BadCall("this model has only one speed. Omit speed.", "speed")
    return tag


def _string(body: Mapping, name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, Mapping):  # OpenAI's {"id": ...}
        value = value.get("id")
    if not isinstance(value, str):
        raise BadCall(f"{name} must be a string.", name)
    return value.strip() or None


def _one_of(body: Mapping, name: str, allowed: Any, default: str) -> str:
    value = _string(body, name) or default
    if value not in allowed:
        raise BadCall(f"{name} is {value[:40]!r}. Choose one of: {', '.join(allowed)}.", name)
    return value
