"""Request bodies: checks before reading, JSON, forms."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from .calls import MOST_CLIP_BYTES, BadCall

MOST_BYTES = 2 * MOST_CLIP_BYTES
_MOST_VALUES = 500  # of a JSON body, nested ones included
_MOST_DIGITS = 40  # of an integer; longer ones are out of every range
_MOST_PARTS = 16  # of a form
_SMALL = 1 << 15  # bytes that are parsed in the event loop
_LETTER = 12  # bytes of a character in JSON, at most
_FIELDS = 1 << 16  # bytes of all else
_CLIP = re.compile(rb'"(ref_audio|references)"')
_Made = TypeVar("_Made")
_UTF8 = ("", "utf-8", "utf8", "us-ascii")
_BOUNDARY = re.compile(r'^multipart/form-data\s*;.*?boundary="?([^\s";,]{1,70})', re.IGNORECASE)
_FIELD = re.compile(rb'[;\s]name="?([^";\r\n]*)', re.IGNORECASE)


async def beside(size: int, work: Callable[..., _Made], *given: Any) -> _Made:
    """Return work(*given), made in a thread if its input of `size` bytes would hold up the event loop."""
    return work(*given) if size <= _SMALL else await asyncio.to_thread(work, *given)


def check_head(request: web.Request) -> None:
    """Check a request before its body is read. Raises BadCall if it is too large, compressed or in another charset."""
    if (request.content_length or 0) > MOST_BYTES:
        raise BadCall(f"the body is larger than {MOST_BYTES >> 20} MB. Send a shorter clip.", None, 413)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadCall("the body has a Content-Encoding. Send it without one.", None, 415)
    if (charset := request.charset or "").lower() not in _UTF8:
        raise BadCall(f"the body's charset is {charset[:40]!r}. Send UTF-8.", None, 415)


def most_text(most_characters: int, count: int = 1) -> int:
    """Return the bytes of a body of so many calls and a scene, if it has no clip."""
    return min(MOST_BYTES, _LETTER * most_characters * (count + 1) + _FIELDS)


def check_clip_begins(data: bytes) -> bytes:
    """Return the first bytes of a body that is large for a text. Raises BadCall if no clip's field is among them."""
    if not _CLIP.search(data):
        raise BadCall(f"the body is larger than {len(data) >> 10} KB and has no clip. Send a shorter text.", None, 413)
    return data


def parse_json(data: bytes, most: int = _MOST_VALUES) -> Any:
    """Return a body's JSON. Raises BadCall if it is invalid, or has too many values, before creating any of them."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # so that every quotation mark begins or ends a string
    outside = b"".join(plain.split(b'"', 4 * most)[::2])
    if sum(map(outside.count, (b"[", b"{", b","))) > most:
        raise BadCall(f"the body has more than {most} values. Send only the fields of a call.")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_int=_integer)
    except (ValueError, RecursionError):
        raise BadCall("the body is not JSON.") from None


def parse_form(data: bytes, content_type: str) -> dict[str, bytes]:
    """Return the fields of a multipart/form-data body. Raises BadCall for anything else."""
    boundary = _BOUNDARY.match(content_type)
    if boundary is None:
        raise BadCall("send a form, as multipart/form-data.")
    fields = {}
    for part in (b"\r\n" + data).split(b"\r\n--" + boundary[1].encode("utf-8", "replace"), _MOST_PARTS)[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        if name := _FIELD.search(head):
            fields[name[1].decode("utf-8", "replace")] = value
    return fields


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)
