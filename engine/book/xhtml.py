"""Contents of an EPUB's documents: paragraphs, headings, link targets, and the links of its table of contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .book import Paragraph
from .markup import read_markup

_HEADINGS = {f"h{level}" for level in range(1, 7)}
_BLOCKS = _HEADINGS | set(
    "p div section article aside header footer main body blockquote li ul ol dl dt dd tr td th table caption figure "
    "figcaption pre address center".split()
)
_SILENT = set("head style script title svg math rt rp nav audio video object template".split())
_VOID = set("area base br col embed hr img input link meta source track wbr".split())
_SILENT_KINDS = set(
    "noteref footnote endnote rearnote footnotes endnotes rearnotes pagebreak doc-noteref doc-footnote doc-endnotes "
    "doc-backlink doc-pagebreak".split()
)


@dataclass
class Document:
    """Paragraphs in order. anchors: id -> index of the next paragraph; kinds: declared types of the document."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    anchors: dict[str, int] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)


def read_document(text: str) -> Document:
    """Read a file of XHTML or HTML, however broken."""
    reader = _Paragraphs()
    reader.read(text)
    reader.end_paragraph()
    return reader.document


def links_in(text: str) -> list[tuple[int, str, str]]:
    """Return (depth from 1, href, label) of each entry in an EPUB 3 navigation document."""
    reader = _Links()
    reader.read(text)
    return reader.links


def _kinds_of(attributes: Mapping[str, str]) -> list[str]:
    return (f"{attributes.get('epub:type', '')} {attributes.get('role', '')}").lower().split()


class _XHTMLReader:
    def read(self, text: str):
        for one in read_markup(text):
            if isinstance(one, str):
                self._say(one)
                continue
            if one.starts:
                self._start(one.name, one.attributes)
            if one.ends:
                self._end(one.name)

    def _say(self, text: str): ...

    def _start(self, tag: str, attributes: Mapping[str, str]): ...

    def _end(self, tag: str): ...


class _Paragraphs(_XHTMLReader):
    def __init__(self):
        self.document = Document()
        self._said: list[str] = []
        self._heading = ""  # tag of the open heading
        self._silent: list[str] = []  # open elements, from the first that is not read aloud
        self._open = Counter()  # number of them, by name

    def _start(self, tag: str, attributes: Mapping[str, str]):
        if (name := attributes.get("id")) and not self._silent:
            if tag in _BLOCKS:
                self.end_paragraph()
            self.document.anchors.setdefault(name, len(self.document.paragraphs))
        kinds = _kinds_of(attributes)
        if tag in ("html", "body") or (tag == "section" and not self.document.paragraphs and not self._silent):
            self.document.kinds += kinds
        if tag in _VOID:
            self._void(tag)
        elif self._silent or tag in _SILENT or (tag not in ("html", "body", "section") and _SILENT_KINDS & {*kinds}):
            self._silent.append(tag)
            self._open[tag] += 1
        elif tag in _BLOCKS:
            self.end_paragraph()
            self._heading = tag if tag in _HEADINGS else self._heading

    def _void(self, tag: str):
        if self._silent:
            return
        if tag == "br":
            self._said.append("\n")
        elif tag == "hr":
            self.end_paragraph()
            self.document.paragraphs.append(Paragraph(""))

    def _end(self, tag: str):
        if self._silent:
            while self._open[tag]:  # and all that was left open inside it
                last = self._silent.pop()
                self._open[last] -= 1
                if last == tag:
                    break
        elif tag in _BLOCKS:
            self.end_paragraph()
            self._heading = "" if tag == self._heading else self._heading

    def _say(self, text: str):
        if not self._silent:
            self._said.append(" ".join(text.split("\n")))

    def end_paragraph(self) -> None:
        """End the current paragraph."""
        lines = [" ".join(line.split()) for line in "".join(self._said).split("\n")]
        self._said = []
        if text := "\n".join(filter(None, lines)):
            self.document.paragraphs.append(Paragraph(text, is_heading=bool(self._heading)))


class _Links(_XHTMLReader):
    """Links in <nav epub:type="toc">, or in the first <nav> if there is none."""

    def __init__(self):
        self._navs: dict[int, list[tuple[int, str, str]]] = {}
        self._chosen, self._open, self._depth = 0, 0, 0
        self._href: str | None = None
        self._label: list[str] = []

    @property
    def links(self) -> list[tuple[int, str, str]]:
        return self._navs.get(self._chosen or 1, [])

    def _start(self, tag: str, attributes: Mapping[str, str]):
        if tag == "nav":
            self._open, self._depth = len(self._navs) + 1, 0
            self._navs[self._open] = []
            if {"toc", "doc-toc"} & {*_kinds_of(attributes)}:
                self._chosen = self._open
        elif self._open and tag in ("ol", "ul"):
            self._depth += 1
        elif self._open and tag == "a":
            self._href, self._label = attributes.get("href"), []

    def _end(self, tag: str):
        if tag == "nav":
            self._open = 0
        elif self._open and tag in ("ol", "ul"):
            self._depth -= 1
        elif self._open and tag == "a" and self._href:
            self._navs[self._open].append((self._depth, self._href, " ".join("".join(self._label).split())))
            self._href = None

    def _say(self, text: str):
        if self._href:
            self._label.append(text)
