"""A linear-time tokenizer for HTML and XHTML, however broken. Needs only Python's library.

Python's own parser starts over at each unclosed mark, which takes hours for some small files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..files.plain_text import unescape

_NAME = re.compile(r"(?:/\s*)?([A-Za-z][^\s/>]*)")
_END = re.compile(r""">|=\s*(["'])""")  # of a tag, or where a quoted value begins
_WANTED = re.compile(
    r"""(?<![^\s"'/])(id|epub:type|role|href|class|style|hidden|aria-hidden|rel)\s*=\s*"""
    r"""(?:"([^"]*)"|'([^']*)'|([^\s"']\S*))|(?<![^\s"'/])(hidden)(?![^\s/])|=\s*(?:"[^"]*"|'[^']*')""",
    re.IGNORECASE,
)
# Where content without tags begins and ends. An element of _RAW ends with its own end tag.
_COMMENT, _CDATA = ("<!--", "-->"), ("<![CDATA[", "]]>")
_RAW = {name: re.compile(rf"</{name}", re.IGNORECASE) for name in ("script", "style")}


class Tag(NamedTuple):
    """A start tag `<a>`, an end tag `</a>`, or both, `<a/>`. attributes: those that the readers use."""

    name: str
    attributes: dict[str, str]
    starts: bool
    ends: bool


def read_markup(text: str) -> Iterator[Tag | str]:
    """Yield tags, with lower-case names, and the text between them. Skips comments and declarations."""
    at, quotes = 0, True  # quotes: a > may be in a quoted value; False once one is never closed
    last = {opening: text.rfind(closing) for opening, closing in (_COMMENT, _CDATA)}
    while (mark := text.find("<", at)) >= 0:
        if mark > at:
            yield unescape(text[at:mark])
        name = _NAME.match(text, mark + 1)
        if name is None and text[mark + 1 : mark + 2] not in ("!", "?", "/"):  # not a tag: 1 < 2
            yield "<"
            at = mark + 1
            continue
        if name is None:
            opening, closing = next((pair for pair in (_COMMENT, _CDATA) if text.startswith(pair[0], mark)), ("", ">"))
            closing = closing if mark < last.get(opening, len(text)) else ">"
            end = text.find(closing, mark + 2)
            if opening == _CDATA[0] and closing == _CDATA[1]:
                yield text[mark + len(opening) : end]
            at = end + len(closing) if end >= 0 else len(text)
            continue
        end = _end_of_tag(text, name.end()) if quotes else -1
        if end < 0:
            quotes, end = False, text.find(">", name.end())
        if end < 0:
            break
        tag = _tag(name, text[name.end() : end])
        yield tag
        at = end + 1
        if tag.name in _RAW and not tag.ends:
            closed = _RAW[tag.name].search(text, at)
            at = closed.start() if closed else len(text)
    yield unescape(text[at:])


def _end_of_tag(text: str, at: int) -> int:
    """Return the index of a tag's >, or -1 if it is not closed."""
    while match := _END.search(text, at):
        if match[1] is None:
            return match.start()
        at = text.find(match[1], match.end()) + 1
        if not at:
            break
    return -1


def _tag(name: re.Match, body: str) -> Tag:
    is_end = name[0].startswith("/")
    wanted = _WANTED.finditer(body) if body.strip("/ ") else ()
    pairs = ((one[1] or one[5], one[2] or one[3] or one[4] or "") for one in wanted)
    attributes = {key.lower(): unescape(value) for key, value in pairs if key}
    return Tag(name[1].lower(), attributes, not is_end, is_end or body.endswith("/"))
