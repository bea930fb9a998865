"""Contents of an EPUB's documents: paragraphs, headings, link targets, and the links of its table of contents."""

from __future__ import annotations

from collections.abc import Iterable
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
    """Return (depth from 1, href, label) of each entry in an EPUB 3 navigation document.

    They are those of <nav epub:type="toc">, or of the first <nav> if there is none.
    """
    navs: list[list[tuple[int, str, str]]] = []
    chosen, is_open, depth, href, label = 0, False, 0, None, []
    for one in read_markup(text):
        if isinstance(one, str):
            label += [one] if href else []
            continue
        if one.starts and one.name == "nav":
            is_open, depth = True, 0
            navs.append([])
            if {"toc", "doc-toc"} & {*kinds_of(one.attributes)}:
                chosen = len(navs) - 1
        elif one.starts and is_open and one.name in ("ol", "ul"):
            depth += 1
        elif one.starts and is_open and one.name == "a":
            href, label = one.attributes.get("href"), []
        if one.ends and one.name == "nav":
            is_open = False
        elif one.ends and is_open and one.name in ("ol", "ul"):
            depth -= 1
        elif one.ends and is_open and one.name == "a" and href:
            navs[-1].append((depth, href, " ".join("".join(label).split())))
            href = None
    return navs[chosen] if navs else []


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
