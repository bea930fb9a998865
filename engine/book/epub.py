"""EPUB files as chapters: the spine's documents, split at the table of contents. Needs only Python's library."""

from __future__ import annotations

import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from ..core.config import MOST_BOOK_BYTES, MOST_BOOK_LINES, MOST_BOOK_TAGS
from ..core.errors import HiggsError, shown_name
from ..files.plain_text import decode_text, encodable, tell
from .book import Book, BookDetails, Paragraph, make_chapters
from .details import is_picture
from .silent import Silence, hidden_by
from .xhtml import Document, links_in, read_document, sheets_of

_DECLARED = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)  # in XML or HTML
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_YEAR = re.compile(r"\d{4}", re.ASCII)
_MARKUP = re.compile(r"<[^>]{0,200}>")  # in a description
_MOST_ABOUT = 4000  # characters of a description
_MOST_COVER = 8 << 20  # bytes
_LEFT_OUT = {  # types of documents that are not read aloud
    "toc": "the table of contents",
    "landmarks": "the table of contents",
    "cover": "the cover",
    "copyright-page": "the copyright page",
    "imprint": "the copyright page",
    "colophon": "the colophon",
    "index": "the index",
    "loi": "the list of illustrations",
    "lot": "the list of tables",
    "footnotes": "the notes",
    "endnotes": "the notes",
    "rearnotes": "the notes",
}


@dataclass(frozen=True)
class _Package:
    title: str
    author: str
    spine: tuple[str, ...]  # file names in the archive
    navigation: str  # EPUB 3's, or nothing
    ncx: str  # EPUB 2's
    details: BookDetails


def read_epub(path: Path) -> Book:
    """Read the book in an EPUB file. Raises HiggsError if it is broken or protected."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _EpubReader(path, archive).read()
    except (
        OSError,
        EOFError,
        OverflowError,
        ValueError,  # also from invalid text
        NotImplementedError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
        ElementTree.ParseError,
    ) as error:
        why = shown_name(str(error))
        raise HiggsError(f"{path} cannot be read as an EPUB ({why}). Download or export it again.") from error


class _EpubReader:
    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self._path, self._archive, self._left_out, self._warnings = path, archive, [], []
        self._silence = Silence()
        self._sheets: dict[str, set[str]] = {}  # the selectors that each hides
        self._names = {name.casefold(): name for name in archive.namelist()}
        self._bytes, self._tags = MOST_BOOK_BYTES, MOST_BOOK_TAGS  # remaining limits

    def read(self) -> Book:
        package = self._package()
        if not {*package.spine}.isdisjoint(self._encrypted()):
            raise HiggsError(f"{self._path} is protected (DRM) and cannot be read. Use an unprotected copy.")
        kept = list(self._documents(package))
        chapters = make_chapters(package.title, self._parts(kept, self._contents(package)), self._silence.left_out)
        left_out = (*dict.fromkeys(self._left_out), *self._silence.summary)
        doubts = self._warnings[:1]  # stands for all
        for doubt in doubts:
            tell(doubt)
        warnings = (*doubts, *self._silence.warnings)
        return Book(package.title, chapters, package.author, left_out, warnings=warnings, details=package.details)

    def _documents(self, package: _Package) -> Iterator[tuple[str, Document]]:
        """Yield (name, document) of each spine file that is read aloud."""
        lines = 0
        for name in package.spine:
            if not self._find(name):
                self._silence.left_out["missing file"] += 1
                continue
            text = self._text(name)
            hidden = set().union(*(self._hidden_by(self._resolve(name, href)) for href in sheets_of(text)))
            document = read_document(text, posixpath.basename(name), self._silence, hidden)
            lines += len(document.paragraphs)
            if lines > MOST_BOOK_LINES:
                raise HiggsError(f"{self._path} has more than {MOST_BOOK_LINES:,} paragraphs. Split the book.")
            if self._is_read(name, document, package):
                yield name, document

    def _hidden_by(self, sheet: str) -> set[str]:
        if sheet not in self._sheets:
            css = self._data(sheet).decode("utf-8", "ignore") if self._find(sheet) else ""
            self._sheets[sheet] = hidden_by(css)
        return self._sheets[sheet]

    def _is_read(self, name: str, document: Document, package: _Package) -> bool:
        why = next((_LEFT_OUT[kind] for kind in document.kinds if kind in _LEFT_OUT), "")
        why = "the table of contents" if name == package.navigation else why
        if why and document.paragraphs:
            self._left_out.append(why)
        return not why

    def _parts(
        self, documents: list[tuple[str, Document]], contents: dict[tuple[str, str], str]
    ) -> Iterator[tuple[str, list[Paragraph]]]:
        """Yield (title, paragraphs) between entries of the contents, or of each document if there are none.

        The title of a document without text, such as a picture of it, is that of the next one.
        """
        title, paragraphs, before = "", [], ""
        for name, document in documents:
            starts = {at: label for anchor, at in document.anchors.items() if (label := contents.get((name, anchor)))}
            if (name, "") in contents:
                starts[0] = contents[name, ""]
            elif not contents:
                starts[0] = next((one.text for one in document.paragraphs if one.level), "")
            starts = {0: before, **starts} if before else starts
            before = starts.get(0, "") if not document.paragraphs else ""
            for at, paragraph in enumerate(document.paragraphs):
                if at in starts:
                    yield title, paragraphs
                    title, paragraphs = starts[at], []
                paragraphs.append(paragraph)
        yield title, paragraphs

    def _contents(self, package: _Package) -> dict[tuple[str, str], str]:
        """Return (file, anchor) -> title of chapter starts. Nested entries in their parent's file count as sections."""
        place = package.navigation or package.ncx
        if not place or not self._find(place):
            return {}
        entries = links_in(self._text(place)) if package.navigation else self._ncx_entries(place)
        titles: dict[tuple[str, str], str] = {}
        files: set[str] = set()
        for depth, href, label in entries:
            target, _, anchor = href.partition("#")
            name = self._resolve(place, target)
            if label and (depth <= 1 or name not in files):
                titles.setdefault((name, unquote(anchor)), label)
            files.add(name)
        return titles

    def _ncx_entries(self, place: str) -> Iterator[tuple[int, str, str]]:
        for top in self._xml(place).iterfind("{*}navMap/{*}navPoint"):
            for point in (top, *top.iterfind(".//{*}navPoint")):
                content, label = point.find("{*}content"), point.find("{*}navLabel/{*}text")
                if content is not None and label is not None:
                    yield 1 if point is top else 2, content.get("src", ""), " ".join((label.text or "").split())

    def _package(self) -> _Package:
        container = "META-INF/container.xml"
        root = self._xml(container).find(".//{*}rootfile")
        place = root.get("full-path") if root is not None else None
        if not place:
            raise HiggsError(f"{self._path} is not a valid EPUB: {container} lists no package. Export it again.")
        package = self._xml(place)
        items = {item.get("id"): item for item in package.iterfind("{*}manifest/{*}item")}

        def file_of(item: ElementTree.Element | None) -> str:
            return self._resolve(place, item.get("href", "")) if item is not None else ""

        spine = package.find("{*}spine")
        refs = [] if spine is None else [ref for ref in spine.findall("{*}itemref") if ref.get("linear") != "no"]
        navigation = next((item for item in items.values() if "nav" in item.get("properties", "").split()), None)
        names = ("title", "creator", "date", "language", "subject", "description")
        metadata = [package.find(f"{{*}}metadata/{{http://purl.org/dc/elements/1.1/}}{name}") for name in names]
        title, author, date, language, genre, description = (
            " ".join("".join(one.itertext()).split()) if one is not None else "" for one in metadata
        )
        year = match[0] if (match := _YEAR.match(date)) else ""
        cover = self._cover(file_of(_cover_item(package, items)))
        about = BookDetails("", year, language[:40], genre[:80], _MARKUP.sub("", description)[:_MOST_ABOUT], cover)
        return _Package(
            title or encodable(self._path.stem),
            author,
            tuple(dict.fromkeys(file_of(items[ref.get("idref")]) for ref in refs if ref.get("idref") in items)),
            file_of(navigation),
            file_of(items.get(spine.get("toc"))) if spine is not None else "",
            about,
        )

    def _cover(self, name: str) -> bytes:
        """Return the cover's file if it is a JPEG or PNG of usual size, else nothing: books are read without."""
        spelled = self._find(name) if name else ""
        if not spelled or self._archive.getinfo(spelled).file_size > _MOST_COVER:
            return b""
        data = self._data(spelled)
        self._bytes += len(data)  # no text
        return data if is_picture(data) else b""

    def _encrypted(self) -> list[str]:
        if not self._find("META-INF/encryption.xml"):
            return []
        references = self._xml("META-INF/encryption.xml").iterfind(".//{*}CipherReference")
        return [posixpath.normpath(unquote(one.get("URI", ""))) for one in references]

    @staticmethod
    def _resolve(place: str, href: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(href.partition("#")[0])))

    def _find(self, name: str) -> str:
        """Return the name as the archive spells it, or nothing if there is no such file."""
        return self._names.get(name.casefold(), "")

    def _data(self, name: str) -> bytes:
        if not (spelled := self._find(name)):
            raise HiggsError(f"{self._path} is incomplete: {shown_name(name)} is missing. Download or export it again.")
        about = self._archive.getinfo(spelled)
        self._bytes -= about.file_size
        if self._bytes < 0:
            raise HiggsError(f"{self._path} has more than {MOST_BOOK_BYTES >> 20} MB of text. Split the book.")
        if about.flag_bits & 1:
            raise HiggsError(f"{self._path} is password-protected. Use a copy without a password.")
        if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise HiggsError(f"{self._path} uses a compression that EPUB does not allow. Download or export it again.")
        return self._archive.read(spelled)

    def _text(self, name: str) -> str:
        data = self._data(name)
        match = _DECLARED.search(data[:1024])
        declared = match[1].decode() if match else ""
        text, doubts = decode_text(data, f"{self._path.name}: {name}", declared)
        self._warnings += doubts
        self._tags -= text.count("<")
        if self._tags < 0:
            raise HiggsError(f"{self._path} has more than {MOST_BOOK_TAGS:,} tags. Split the book.")
        return text

    def _xml(self, name: str) -> ElementTree.Element:
        text = _DECLARATION.sub("", self._text(name))
        if "<!ENTITY" in text:  # entities may expand to gigabytes
            raise HiggsError(
                f"{self._path}: {name} defines entities, which EPUB does not allow. Download or export it again."
            )
        return ElementTree.fromstring(text)


def _cover_item(
    package: ElementTree.Element, items: Mapping[str | None, ElementTree.Element]
) -> ElementTree.Element | None:
    """Return the manifest's entry of the cover, as EPUB 3 or EPUB 2 names it."""
    own = next((item for item in items.values() if "cover-image" in item.get("properties", "").split()), None)
    if own is not None:
        return own
    metas = package.iterfind("{*}metadata/{*}meta")
    return next((items.get(meta.get("content")) for meta in metas if meta.get("name") == "cover"), None)
