"""Contents of an EPUB's documents: paragraphs, headings, link targets, and the links of its table of contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .book import Paragraph, is_scene_break
from .markup import read_markup
from .silent import Silence, kinds_of
from .tree import BLOCKS, HEADINGS, Element, read_tree

_HEAD = 20_000  # characters of a document that hold its links to style sheets


@dataclass
class Document:
    """Paragraphs in order. anchors: id -> index of the next paragraph; kinds: declared types of the document."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    anchors: dict[str, int] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)


def read_document(text: str, name: str = "", silence: Silence | None = None, hidden: Iterable[str] = ()) -> Document:
    """Read a file of XHTML or HTML, however broken.

    name: of the file, without folders. silence: of the book. hidden: see `hidden_by`.
    """
    root = read_tree(text)
    (silence or Silence()).leave_out(root, name, hidden)
    reader = _Paragraphs()
    reader.read(root)
    return reader.document


def sheets_of(text: str) -> list[str]:
    tags = (one for one in read_markup(text[:_HEAD]) if not isinstance(one, str) and one.name == "link")
    return [one.attributes.get("href", "") for one in tags if "stylesheet" in one.attributes.get("rel", "").lower()]


def links_in(text: str) -> list[tuple[int, str, str]]:
    """Return (depth from 1, href, label) of each entry in an EPUB 3 navigation document."""
    reader = _Links()
    reader.read(text)
    return reader.links


class _Paragraphs:
    def __init__(self):
        self.document = Document()
        self._texts: list[str] = []
        self._level = 0  # of the open heading

    def read(self, root: Element) -> None:
        for one in root.walk():
            if isinstance(one, str):
                self._texts.append(" ".join(one.split("\n")))
            elif one[1]:
                self._start(one[0])
            elif one[0].name in BLOCKS:
                self._end_paragraph()
                self._level = 0 if HEADINGS.get(one[0].name) == self._level else self._level
        self._end_paragraph()

    def _start(self, element: Element) -> None:
        tag, paragraphs = element.name, self.document.paragraphs
        if tag in BLOCKS:
            self._end_paragraph()
            self._level = HEADINGS.get(tag, self._level)
        if name := element.attributes.get("id"):
            self.document.anchors.setdefault(name, len(paragraphs))
        if tag in ("html", "body") or (tag == "section" and element.parts and not paragraphs):
            self.document.kinds += kinds_of(element.attributes)
        elif tag == "br":
            self._texts.append("\n")
        elif tag == "hr":
            self._end_paragraph()
            paragraphs.append(Paragraph(""))

    def _end_paragraph(self) -> None:
        lines = [" ".join(line.split()) for line in "".join(self._texts).split("\n")]
        self._texts, together = [], []
        for line in filter(None, lines):
            if is_scene_break(line):
                self._add(together)
                self._add([line])
                together = []
            else:
                together.append(line)
        self._add(together)

    def _add(self, lines: list[str]) -> None:
        if lines:
            self.document.paragraphs.append(Paragraph("\n".join(lines), self._level))


class _Links:
    """Links in <nav epub:type="toc">, or in the first <nav> if there is none."""

    def __init__(self):
        self._navs: dict[int, list[tuple[int, str, str]]] = {}
        self._chosen, self._open, self._depth = 0, 0, 0
        self._href: str | None = None
        self._label: list[str] = []

    def read(self, text: str) -> None:
        for one in read_markup(text):
            if isinstance(one, str):
                self._say(one)
                continue
            if one.starts:
                self._start(one.name, one.attributes)
            if one.ends:
                self._end(one.name)

    @property
    def links(self) -> list[tuple[int, str, str]]:
        return self._navs.get(self._chosen or 1, [])

    def _start(self, tag: str, attributes: Mapping[str, str]):
        if tag == "nav":
            self._open, self._depth = len(self._navs) + 1, 0
            self._navs[self._open] = []
            if {"toc", "doc-toc"} & {*kinds_of(dict(attributes))}:
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
