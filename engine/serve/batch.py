"""Several texts per call: the body and answer of POST /v1/audio/speech/batch.

The fields are those of SGLang-Omni 0.1.9 and vLLM-Omni 0.30.0. An item's fields override the batch's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..speech.result import SpeechResult
from .calls import BadCall, Call, Clip, refuse_ignored
from .errors import Failure
from .sound import FORMATS
from .streams import end_of

MOST_VALUES = 4000  # of a body
_VOICE = ("voice", "speaker", "ref_audio", "ref_text", "references")
_Read = Callable[[Mapping], Call]


def read_batch(body: Any, most: int, read: _Read) -> list[Call | BadCall]:
    """Parse a batch. Returns a call, or its error, per item. read(fields): parses one call.

    Raises BadCall if the body itself or one of its defaults is wrong. A default clip is decoded once.
    """
    if not isinstance(body, Mapping):
        raise BadCall("the body must be a JSON object.")
    items = body.get("items")
    if not isinstance(items, list) or not items:
        raise BadCall("items must be a list of objects with an input each.", "items")
    if len(items) > most:
        raise BadCall(f"items has {len(items)} texts, but this server accepts at most {most}.", "items")
    if "input" in body:
        raise BadCall("input belongs inside each item of a batch, not beside items.", "input")
    defaults = {"response_format": "wav", "stream": False} | _given(body)
    del defaults["items"]
    _check(defaults)

    def strict(fields: Mapping) -> Call:
        call = read(fields)
        refuse_ignored(call, fields)
        return call

    alone = "ref_text" in defaults and "ref_audio" not in defaults  # for the clips of items
    shared = strict({**defaults, "input": "-", **({"ref_text": None} if alone else {})})
    return [_item(item, defaults, shared, strict) for item in items]


def _item(item: Any, defaults: Mapping, shared: Call, read: _Read) -> Call | BadCall:
    try:
        if not isinstance(item, Mapping):
            raise BadCall("an item must be an object with an input.", "items")
        own = _given(item)
        _check(own)
        fields = {name: value for name, value in defaults.items() if name not in _VOICE} | own
        if not (voiced := {name for name in own if name in _VOICE}):
            return replace(read(fields), voice=shared.voice, clip=shared.clip)
        if voiced == {"ref_text"} and shared.clip:  # another transcript; the empty clip is only there to check it
            if shared.clip.more:
                raise BadCall("the batch has several references. Give the item its own, not only ref_text.", "ref_text")
            call = read(fields | {"ref_audio": "AA=="})
            return replace(call, clip=Clip(shared.clip.data, call.clip.transcript if call.clip else ""))
        if "ref_audio" in own and "ref_text" in defaults:
            fields.setdefault("ref_text", defaults["ref_text"])
        return read(fields)
    except BadCall as error:
        return error


def _given(body: Mapping) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _check(fields: Mapping) -> None:
    if fields.get("word_timestamps"):
        raise BadCall("a batch has no word times. Send texts one by one, or omit word_timestamps.", "word_timestamps")
    if fields.get("stream") or fields.get("stream_format") == "sse":
        raise BadCall("a batch does not stream. Omit stream.", "stream" if fields.get("stream") else "stream_format")


def batch_body(name: str, results: Sequence[dict]) -> bytes:
    """Return the JSON that answers a batch, with the results in the items' order."""
    good = sum(result["status"] == "success" for result in results)
    numbered = [{"index": index, **result} for index, result in enumerate(results)]
    counts = {"total": len(results), "succeeded": good, "failed": len(results) - good}
    return json.dumps({"id": f"speech-batch-{name}", "results": numbered, **counts}).encode()


def spoken(kind: str, speech: SpeechResult, data: bytes) -> dict:
    """Return the result of an item. data: its sound as a file of FORMATS."""
    audio = {"audio_data": base64.b64encode(data).decode(), "format": kind, "media_type": FORMATS[kind]}
    return {"status": "success", **audio, **end_of(speech)}


def unspoken(problem: Failure) -> dict:
    return {"status": "error", "error": problem.envelope()}
