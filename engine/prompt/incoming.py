"""Text that arrives in pieces, cut into units that can be spoken before the rest is known."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from .chunking import Cutter, leading_tags
from .script import mask_pauses
from .tags import is_spoken

GRANULARITIES = ("none", "sentence", "clause")
_MOST = 600  # characters that wait for the end of a sentence
_MOST_SECONDS = 30.0  # of the parts of a longer sentence
_OPEN = re.compile(r"(?:<[^<>\r\n]{0,79}|\[[^\[\]\r\n]{0,59})\Z")  # a tag or a pause marker that may still go on
_LINE = re.compile(r"[^\n\]]*[\n\]]")  # to its end, or that of what may be a pause marker, which ends it too


class IncomingText:
    """Cuts incoming text at its sentences or clauses, with granularity "none" at each flush only.

    A sentence is complete at the end of its line, or once the next one begins. Units do not depend on how the text was
    cut into pieces. A unit repeats the delivery tags that its paragraph set in an earlier one.
    """

    def __init__(self, granularity: str):
        self._granularity = granularity
        self._text = ""
        self._gap = ""  # white space before the text
        self._tags: dict[str, str] = {}  # delivery tags of the paragraph, by slot

    def __len__(self) -> int:
        """Return the number of waiting characters."""
        return len(self._text)

    def add(self, text: str) -> list[str]:
        """Add a piece and return the units that are complete now."""
        if self._granularity == "none":
            self._text += text
            return []
        units = []
        while text:
            room = _MOST - len(self._text)
            line = _LINE.match(text, 0, room)  # one at a time, as pieces may come
            end = line.end() if line else room
            self._text, text = self._text + text[:end], text[end:]
            units += self._take(self._cuts())
        return units

    def flush(self) -> list[str]:
        """Return the rest of the text as units."""
        inner = [] if self._granularity == "none" else self._starts(self._text)[1:-1]
        units = self._take([*inner, len(self._text)])
        self._gap, self._tags = "", {}
        return units

    def _cuts(self) -> list[int]:
        """Return the ends of the complete units."""
        known = mask_pauses(self._text)
        if open_tag := _OPEN.search(known):
            known = known[: open_tag.start()]
        cuts = self._starts(known)[1:-1]
        if "\n" in known[len(known.rstrip()) :] and is_spoken(known):
            cuts.append(len(known))
        if not cuts and len(self._text) >= _MOST:
            cuts = [end for _, end in Cutter(known, _MOST_SECONDS).chunks()]
            cuts = cuts[:-1] or cuts
        return cuts

    def _starts(self, text: str) -> list[int]:
        cutter = Cutter(mask_pauses(text), math.inf)
        return cutter.clauses() if self._granularity == "clause" else cutter.sentences

    def _take(self, cuts: list[int]) -> list[str]:
        units = [self._unit(self._text[start:end]) for start, end in pairwise([0, *cuts])]
        self._text = self._text[cuts[-1] :] if cuts else self._text
        return [unit for unit in units if is_spoken(mask_pauses(unit))]

    def _unit(self, text: str) -> str:
        """Return a part of the text with the tags it inherits."""
        said = text.strip()
        if not said:
            self._gap += text
            return ""
        if (self._gap + text[: text.index(said)]).count("\n") > 1:  # a new paragraph
            self._tags = {}
        self._gap = text[text.index(said) + len(said) :]
        own = leading_tags(said)
        inherited = "".join(tag for slot, tag in self._tags.items() if slot not in own)
        self._tags |= own
        return inherited + said
