"""Text that arrives in pieces, cut into units that can be spoken before the rest is known."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from .chunking import Cutter, leading_tags, may_end
from .script import is_pause, mask_pauses
from .tags import is_spoken

GRANULARITIES = ("none", "sentence", "clause")
_MOST = 600  # characters that wait for the end of a sentence
_MOST_SECONDS = 30.0  # of the parts of a longer sentence
_OPEN = re.compile(r"(?:<[^<>\r\n]{0,79}|\[[^\[\]\r\n]{0,59})\Z")  # a tag or a pause marker that may still go on
_LINE_END = re.compile(r"[\n\]]")  # "]" may end a pause marker, which ends a line too
_SAID = re.compile(r"[^\W_]")


class IncomingText:
    """Cuts incoming text at its sentences or clauses, with granularity "none" at each flush only.

    A sentence is complete at the end of its line, or once the next one begins. Units do not depend on how the text was
    cut into pieces. A unit repeats the delivery tags that its paragraph set in an earlier one.
    """

    def __init__(self, granularity: str):
        self._granularity = granularity
        self._text = ""
        self._more: list[str] = []  # what follows the text, with granularity "none"
        self._length = 0
        self._is_said = False  # something was said since the last line end
        self._gap = 0  # line ends before the text
        self._tags: dict[str, str] = {}  # delivery tags of the paragraph, by slot

    def __len__(self) -> int:
        """Return the number of waiting characters."""
        return len(self._text) + self._length

    def add(self, text: str) -> list[str]:
        """Add a piece and return the units that are complete now.

        The time is linear in the piece: the waiting text is cut only where a sentence may have ended.
        """
        if self._granularity == "none":
            self._more.append(text)
            self._length += len(text)
            return []
        units, at = [], 0
        while at < len(text):
            end, is_over = self._line_end(text, at, min(len(text), at + _MOST - len(self._text)))
            is_said = _SAID.search(text, at, end) is not None
            self._text, at = self._text + text[at:end], end
            if self._may_cut(is_said, is_over):
                units += self._take(self._cuts())
        return units

    def flush(self) -> list[str]:
        """Return the rest of the text as units."""
        self._text += "".join(self._more)
        self._more, self._length = [], 0
        inner = [] if self._granularity == "none" else self._starts(self._text)[1:-1]
        units = self._take([*inner, len(self._text)])
        self._gap, self._tags = 0, {}
        return units

    def _line_end(self, text: str, at: int, end: int) -> tuple[int, bool]:
        """Return (end of the first line or pause marker that ends after `at`, True), or else (end, False)."""
        for match in _LINE_END.finditer(text, at, end):
            opens = text.rfind("[", at, match.start())
            before = "" if opens >= 0 else self._text[self._text.rfind("[") :]
            marker = before + text[max(opens, at) : match.end()]
            if match[0] == "\n" or (marker.find("]") == len(marker) - 1 and is_pause(marker)):
                return match.end(), True
        return end, False

    def _may_cut(self, is_said: bool, is_over: bool) -> bool:
        """True if the last piece may have ended a sentence. is_said: it has a letter; is_over: it ends a line."""
        if len(self._text) >= _MOST:
            return True
        self._is_said |= is_said
        if is_over:  # all that was said is complete; without a word, what waits is not looked at again
            was_said, self._is_said = self._is_said, False
            return was_said and is_spoken(mask_pauses(self._text))
        return is_said and may_end(self._text, self._granularity == "clause")

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
        if not (unit := text.strip()):
            self._gap += text.count("\n")
            return ""
        begin = text.index(unit)
        if self._gap + text.count("\n", 0, begin) > 1:  # a new paragraph
            self._tags = {}
        self._gap = text.count("\n", begin + len(unit))
        own = leading_tags(unit)
        inherited = "".join(tag for slot, tag in self._tags.items() if slot not in own)
        self._tags |= own
        return inherited + unit
