"""Parse session.config of /v1/audio/speech/stream. Imports no HTTP library and no engine.

The fields are those of SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..prompt.incoming import GRANULARITIES
from ..speech.session_voice import SessionVoice
from .calls import BadCall, Call, read_call, refuse_ignored

_HTTP_ONLY = ("input", "index", "stream", "stream_format", "loudness")  # of a call; a session has its own
_ENVELOPE = ("type", "session")
_CLIP = ("ref_audio", "ref_text", "references")


@dataclass(frozen=True)
class TextSession:
    fields: Mapping[str, Any]  # of every call, checked
    granularity: str
    streams: bool  # sends sound while it is made
    call: Callable[[Mapping[str, Any]], Call]

    def without_clip(self) -> TextSession:
        """Return the session without its clip of up to 14 MB, once its voice is made."""
        return replace(self, fields={name: value for name, value in self.fields.items() if name not in _CLIP})

    def call_for(self, text: str, index: int = 0) -> Call:
        """Return the call that speaks one unit. Raises BadCall."""
        return self.call({**self.fields, "input": text, "index": index})


@dataclass(slots=True)
class Unit:
    """A sentence or clause to speak, and how much of it was sent."""

    session: TextSession
    voice: SessionVoice
    text: str
    index: int  # in the connection
    stream: str  # id of the connection
    utterance: int
    sentence: int  # in the utterance
    total_bytes: int = 0

    @property
    def where(self) -> dict[str, object]:
        place = {"utterance_index": self.utterance, "sentence_index": self.sentence}
        return {**place, "id": f"{self.stream}-{self.index}"}


def read_session(message: Mapping, most_characters: int, knows_tag: Callable[[str], bool]) -> TextSession:
    """Parse a session.config, whose fields are in `session` or beside `type`. Raises BadCall that names the field."""
    outer = {name: value for name, value in message.items() if name not in _ENVELOPE}
    given = message.get("session")
    if given is None:
        given = outer
    elif not isinstance(given, Mapping):
        raise BadCall("session must be an object.", "session")
    elif outer:
        raise BadCall("session.config has fields inside and beside session. Put all of them inside.", next(iter(outer)))
    fields = {name: value for name, value in given.items() if value is not None}
    for name in _HTTP_ONLY:
        if name in fields:
            raise BadCall(f"session.config has no field {name}. Remove it.", name)
    streams, granularity = fields.pop("stream_audio", False), fields.pop("split_granularity", "sentence")
    if not isinstance(streams, bool):
        raise BadCall("stream_audio must be true or false.", "stream_audio")
    if granularity not in GRANULARITIES:
        raise BadCall(f"split_granularity must be one of: {', '.join(GRANULARITIES)}.", "split_granularity")
    fields.setdefault("response_format", "pcm")
    session = TextSession(fields, granularity, streams, lambda body: read_call(body, most_characters, knows_tag))
    call = session.call_for("A word.")
    refuse_ignored(call, fields)
    if call.word_timestamps and not (streams and call.format == "pcm"):
        raise BadCall("word_timestamps needs stream_audio and response_format pcm. Set them.", "word_timestamps")
    return session
