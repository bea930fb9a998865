"""Titles of a text, which are spoken with the sentence after them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from .chunking import CLOSERS, STOPS
from .script import Script
from .tags import PAUSE_SECONDS

_MOST = 80  # characters of a title
_STOPPED = re.compile(rf"[.!?…．{STOPS}][{CLOSERS}]*\Z")
_NO_TITLE = re.compile(rf"[-*+•·>|\[]|.*[\n<]|.*[.!?…．{STOPS},;:、，；：–—-][{CLOSERS}]*\Z")


def join_titles(script: Script, follows: Callable[[str], bool]) -> Script:
    """Join titles to the paragraphs after them. Alone, they are heard sooner than the next chunk can be spoken.

    A title is a line without a stop before a paragraph with one, perhaps with another title between them. In place of
    the gap's silence it has the model's own pause, if follows(tag): that is no longer than the longest of these.
    """
    gaps = [pause for pause in script.pauses if not pause.is_written]
    if not gaps or gaps[0].seconds > max(PAUSE_SECONDS.values()):
        return script
    text, edges = script.text, [0, *(gap.at for gap in gaps), len(script.text)]
    written = [pause.at for pause in script.pauses if pause.is_written]
    kinds = []
    for start, stop in pairwise(edges):
        paragraph = text[start:stop].strip()
        is_alone = bisect_left(written, start + 1) == bisect_left(written, stop + 1)  # no pause that is wanted follows
        kinds.append("title" if is_alone and is_title(paragraph) else "prose" if _is_prose(paragraph) else "")
    joined = [
        at
        for at, kind in enumerate(kinds)
        if kind == "title" and (kinds[at + 1 : at + 2] == ["prose"] or kinds[at + 1 : at + 3] == ["title", "prose"])
    ]
    ends = [edges[at] + len(text[edges[at] : edges[at + 1]].rstrip()) for at in joined]
    tag = min(PAUSE_SECONDS, key=lambda tag: abs(PAUSE_SECONDS[tag] - gaps[0].seconds))
    pause = f" {tag}" if follows(tag) else ""
    parts = [text[start:stop] for start, stop in pairwise([0, *ends, len(text)])]

    def moved(at: int) -> int:
        return at + len(pause) * bisect_left(ends, at)

    inner = {edges[at + 1] for at in joined}
    pauses = [replace(one, at=moved(one.at)) for one in script.pauses if one.is_written or one.at not in inner]
    return replace(script, text=pause.join(parts), pauses=tuple(pauses), joined=frozenset(map(moved, inner)))


def is_title(paragraph: str) -> bool:
    return any(map(str.isalnum, paragraph[:_MOST])) and len(paragraph) <= _MOST and not _NO_TITLE.match(paragraph)


def _is_prose(paragraph: str) -> bool:
    return _STOPPED.search(paragraph[-_MOST:]) is not None and not paragraph.startswith("<")  # a tag begins a chunk
