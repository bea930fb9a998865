"""Leaves out what is not read aloud of a document: note marks, notes, page numbers, formulas and hidden text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from ..core.errors import shown_name
from .marks import LOOK_BACK, RAISED, is_power, summary_of
from .tree import BLOCKS, HEADINGS, Element

SILENT = set("head style script title svg math rt rp nav audio video object template".split())
_NOT_READ = {"noteref": "note mark", "footnote": "note", "endnote": "note", "rearnote": "note", "backlink": "",
             "pagebreak": "page number"}  # fmt: skip
# Classes of converters, such as footnote-ref, pagenum and fn; a "note" alone may be a box in the text.
_CLASS = re.compile(
    r"(?P<mark>(?:foot|end)note-?(?:ref|anchor|call)|noteref|fn-?ref)|(?P<note>(?:foot|end)notes?(?:-?(?:body|text))?|fn)"
    r"|(?P<back>(?:foot|end)note-?back(?:link|ref)?|backlink)|(?P<page>page-?(?:num(?:ber)?|no|break)s?)"
)
_OF_CLASS = {"mark": "note mark", "note": "note", "back": "", "page": "page number"}
_HIDES = re.compile(r"(?:^|[;\s])(?:display\s*:\s*none|visibility\s*:\s*hidden)")
_MARK = re.compile(r"[\[(]?(?:\d{1,3}(?:\s?[,–-]\s?\d{1,3}){0,4}|[*†‡§¶]{1,3}\d{0,3})[\])]?")
_SURE = re.compile(r"\[.*|[*†‡§¶].*")  # a link to something else has none of these
_BACK = re.compile(r"[↩↑⏎^←\ufe0e\s]+")
_NOTE_TARGET = re.compile(r"(?:foot|end)?_?(?:note|fn|ftn|edn)[_-]?\w*", re.IGNORECASE)


def hidden_by(sheet: str) -> set[str]:
    """Return the simple selectors of elements that a style sheet always hides: .a, p.a, #a, p."""
    plain = "".join(part.partition("*/")[2] if at else part for at, part in enumerate(sheet.split("/*")))
    hidden, depth = set(), 0
    for rule in plain.split("}"):
        selectors, _, style = rule.rpartition("{")
        if not depth and "{" not in selectors and _HIDES.search(style.lower()):
            hidden |= {one.strip() for one in selectors.split(",")}
        depth = max(0, depth + rule.count("{") - 1)  # rules inside @media may not apply
    return hidden


def kinds_of(attributes: dict[str, str]) -> list[str]:
    return (f"{attributes.get('epub:type', '')} {attributes.get('role', '')}").lower().split()


@dataclass
class Silence:
    """Chooses what is left out of a book's documents, one after the other, and counts it by kind."""

    left_out: Counter[str] = field(default_factory=Counter)
    powers: dict[str, None] = field(default_factory=dict)  # kept, with their words
    _targets: dict[tuple[str, str], str] = field(default_factory=dict)  # of note marks, and what these say
    _marks: set[str] = field(default_factory=set)

    @property
    def summary(self) -> list[str]:
        """Return what was left out, for users."""
        return summary_of(self.left_out)

    @property
    def warnings(self) -> list[str]:
        """Return a warning if raised numbers were kept."""
        words = [*map(shown_name, islice(self.powers, 3)), *["..."] * (len(self.powers) > 3)]
        return [f"Raised numbers were kept as powers: {', '.join(words)}."] if words else []

    def leave_out(self, root: Element, name: str = "", hidden: Iterable[str] = ()) -> None:
        """Empty all elements that are not read aloud. name: of the file. hidden: see `hidden_by`."""
        _Pass(self, name, {*hidden}).run(root)


class _Pass:
    def __init__(self, silence: Silence, name: str, hidden: set[str]):
        self._silence, self._name, self._hidden = silence, name, hidden
        self._tail = ""  # the last characters of the block
        self._held: tuple[Element, list, bool] | None = None  # a mark, its parts, and True if it is sure to be one
        self._block: Element | None = None

    def run(self, root: Element) -> None:
        blank, count = [], 0  # paragraphs
        for one in root.walk():
            if isinstance(one, str):
                self._settle(one)
                self._tail = (
                    (self._tail + one)[-LOOK_BACK:] if one.strip() else self._tail and f"{self._tail} "[-LOOK_BACK:]
                )
                continue
            element, starts = one
            is_block = element.name in BLOCKS
            if starts and self._is_silent(element):
                continue
            if is_block:
                self._settle("")
                if not starts and element.name == "p":
                    is_blank = element is self._block and not self._tail
                    blank += [element] if is_blank else []
                    count += not is_blank
                self._tail, self._block = "", element if starts else None
            if starts:
                self._judge_note(element)
                self._hold_mark(element)
        self._settle("")
        for element in blank if 2 * len(blank) <= count else ():  # else they only space paragraphs
            element.name, element.parts = "hr", []

    def _is_silent(self, element: Element) -> bool:
        """True if an element is left out by its kind. Removes its parts."""
        if not element.is_closed or element.name in ("html", "body"):
            return False
        attributes = element.attributes
        classes = attributes.get("class", "").split()
        kinds = [kind.removeprefix("doc-") for kind in kinds_of(attributes)]
        why = next((_NOT_READ[kind.rstrip("s")] for kind in kinds if kind.rstrip("s") in _NOT_READ), None)
        if why is None and (match := next(filter(None, (_CLASS.fullmatch(one.lower()) for one in classes)), None)):
            why = _OF_CLASS[match.lastgroup or ""]
        if why is None and self._is_hidden(element, classes):
            why = "hidden part"
        if why is None and element.name not in SILENT:
            return False
        why = "formula" if why is None and element.name == "math" else why
        inside = element.first()
        if why == "note mark":
            self._remember(element, element.text())
        if why and any(one.strip() for one in inside if isinstance(one, str)):
            self._silence.left_out[why] += max(1, sum(isinstance(one, Element) and one.name == "li" for one in inside))
        element.parts = []
        return True

    def _is_hidden(self, element: Element, classes: list[str]) -> bool:
        given, name = element.attributes, element.name
        if "hidden" in given or given.get("aria-hidden", "").lower() == "true":
            return True
        if _HIDES.search(given.get("style", "").lower()):
            return True
        known = {name, f"#{given.get('id', '')}", *(f"{tag}.{one}" for one in classes for tag in ("", name))}
        return not self._hidden.isdisjoint(known)

    def _hold_mark(self, element: Element) -> None:
        """Hold an element that may be a note mark, until it is known what follows it."""
        target = element.attributes.get("href", "").partition("#")[2] if element.name == "a" else ""
        if self._held or not (element.name == "sup" or target) or not self._tail:
            return
        text = element.text()
        if not _MARK.fullmatch(text):
            return
        inside = [one for one in element.first() if isinstance(one, Element)]
        link = element if target else next((one for one in inside if one.name == "a"), None)
        is_sure = bool(target) and (
            any(one.name == "sup" for one in inside) or bool(_SURE.match(text) or _NOTE_TARGET.fullmatch(target))
        )
        if target and not is_sure and self._tail[-1].isspace():  # as in: see chapter <a>3</a>
            return
        self._held = element, element.parts, is_sure or link is not None
        if link is not None:
            self._remember(link, text)
        element.parts = []

    def _remember(self, link: Element, text: str) -> None:
        file, _, target = link.attributes.get("href", "").partition("#")
        if target:
            self._silence._targets[file.rpartition("/")[2] or self._name, target] = text.strip("[]() ")
            self._silence._marks.add(link.attributes.get("id", ""))

    def _settle(self, after: str) -> None:
        """Leave out the mark that is held, or put it back."""
        if self._held is None:
            return
        (element, parts, is_sure), self._held = self._held, None
        if not is_sure and is_power(self._tail, after):
            element.parts = parts
            if self._tail[-1:].isalnum() and (raised := element.text()).isdecimal():  # else 10<sup>6</sup> is 106
                element.parts = [raised.translate(RAISED)]
            self._tail += element.text()
            self._silence.powers[self._tail.split()[-1]] = None
        else:
            self._silence.left_out["note mark"] += 1

    def _judge_note(self, element: Element) -> None:
        """Leave out a block that a note mark leads to, if it begins with the mark or leads back."""
        key = self._name, element.attributes.get("id", "")
        block = element if element.name in BLOCKS else None if self._tail else self._block
        mark = self._silence._targets.pop(key, "") if block is not None and key in self._silence._targets else ""
        if block is None or not mark:
            return
        inside = block.first()
        elements = [one for one in inside if isinstance(one, Element)]
        if block.name in HEADINGS or any(one.name in HEADINGS for one in elements):
            return
        text = block.text().lstrip("[(^ ")
        links = [one for one in elements if "#" in one.attributes.get("href", "")]
        leads_back = any(
            _BACK.fullmatch(one.text()) or one.attributes["href"].partition("#")[2] in self._silence._marks - {""}
            for one in links
        )
        if leads_back or (text.startswith(mark) and len(text) > len(mark) + 1):
            block.name, block.parts = "aside", []  # no blank paragraph
            self._silence.left_out["note"] += 1
