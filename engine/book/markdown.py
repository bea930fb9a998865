"""Markdown as chapters: split at # headings, without formatting marks. Its blocks are read as HTML, like an EPUB's."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator

from ..prompt.wrapped import joined_words
from .book import Book, Paragraph, make_chapters
from .marks import without_low_lines, without_stars
from .silent import SILENT, Silence
from .tree import BLOCKS
from .xhtml import read_document

# Lines of YAML between rules: a key, a list's item, a comment, a value's further line.
_FRONT = re.compile(
    r"---[^\S\n]*\n((?=[\w\"'])(?:(?!---|\.\.\.)(?:[\w\"'][\w \"'.-]*:(?=\s).*|(?:[^\S\n]|#|-\s).*)?\n)+)"
    r"(?:---|\.\.\.)[^\S\n]*(?:\n|$)"
)
_FIELD = re.compile(r"^(title|author):[^\S\n]*(.+)$", re.MULTILINE | re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INLINE = set(
    "a abbr acronym area b bdi bdo big br cite code col colgroup dd del dfn em embed font hr html i iframe img input "
    "ins kbd label link map mark meta noscript picture q s samp search small source span strike strong sub sup tbody "
    "tfoot thead time track tt u var wbr".split()
)
# A < that begins no tag, as in a<b, <your name> and <<Bonjour>>. Tags of SSML and others have a value or a slash.
_OPEN = re.compile(
    rf"<(?!/?(?:{'|'.join(sorted(BLOCKS | SILENT | _INLINE))})(?:\s[^<>=]*=[^<>]*|(?:\s+[a-z-]+)?\s*/?)>"
    r"|[a-z][\w:-]*\s[^<>=]*=\s?[\"'][^<>]*>|[a-z][\w:-]*\s*/>|/[a-z][\w:-]*>)",
    re.IGNORECASE,
)
_CODE = re.compile(r"`[^`\n]+`")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[^\S\n]*")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_QUOTE = re.compile(r"(?: {0,3}> ?){1,9}")
_ITEM = re.compile(r"\s*[-*+][^\S\n]+")
_NUMBERED = re.compile(r"\s*\d+[.)][^\S\n]+")
_DEFINITION = re.compile(  # of a footnote, or of a link, unlike [Anna]: Hello.
    r" {0,3}\[(?:(\^)[^\]\n]+\]:[^\S\n]*\S|[^\]\n]+\]:[^\S\n]*(?:<[^<>\n]*>|(?=\S*?(?:[/#:@]|\.\w))\S+)"
    r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*$)"
)
_INDENTED = re.compile(r"(?: {4}|\t)\s*\S")  # also a footnote's further paragraphs
# No pattern looks beyond the next bracket of its kind, so a line of a million brackets takes linear time.
_TARGET = r"(?:\([^()\n]*(?:\([^()\n]*\)[^()\n]*){0,4}\)|\[[^\[\]\n]*\])"
_LINKS = [
    (re.compile(rf"!\[[^\[\]\n]*\]{_TARGET}"), "<img>"),
    (re.compile(r"\[\^[^\[\]\n]+\]"), '<a role="doc-noteref">*</a>'),
    (re.compile(r"\[([^\[\]\n]*)\]\((#[^()\s\"]*)[^()\n]*\)"), r'<a href="\2">\1</a>'),  # inside the text
    (re.compile(rf"\[([^\[\]\n]*)\]{_TARGET}"), r"\1"),
    (re.compile(r"<((?:[a-zA-Z][a-zA-Z0-9+.-]{1,31}:|[\w.+-]{1,64}@)[^\s<>]+)>"), r"\1"),
]
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def read_markdown(text: str, title: str) -> Book:
    """Read a book in Markdown.

    Chapters are at the highest level that has several headings. A single heading above them, before any text, is the
    book's title. title: used if there is none.
    """
    text, author = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n"), ""
    if front := _FRONT.match(text):
        fields = {name.lower(): value.strip().strip("\"'") for name, value in _FIELD.findall(front[1])}
        title, author = fields.get("title", title), fields.get("author", "")
        text = text[front.end() :]
    closed, end, rest = text.rpartition("-->")  # no comment ends after the last one
    silence = Silence()
    document = read_document("".join(_blocks(_COMMENT.sub("", closed + end) + rest)), silence=silence)
    blocks = [(one.level, _plain(one.text)) for one in document.paragraphs]
    counts = Counter(level for level, _ in blocks if level)
    level = min((level for level, count in counts.items() if count > 1), default=min(counts, default=0))
    first = next(((at, plain) for at, plain in blocks if at or plain), (0, ""))
    if 0 < first[0] < level:
        title = first[1] or title
    parts: list[tuple[str, list[Paragraph]]] = [("", [])]
    for at, plain in blocks:
        if 0 < at <= level:
            parts.append((plain, []))
        parts[-1][1].append(Paragraph(plain, at))
    chapters = make_chapters(title, parts, silence.left_out)
    return Book(title, chapters, author, tuple(silence.summary), warnings=tuple(silence.warnings))


def _blocks(text: str) -> Iterator[str]:
    """Yield each paragraph and heading as HTML."""
    lines: list[str] = []
    fence, in_note = "", False  # fence: the mark of the open one

    def end(tag: str = "p") -> Iterator[str]:
        if lines:
            yield f"<{tag}>{_markup(joined_words(chr(10).join(lines)))}</{tag}>"
        lines.clear()

    for whole in text.split("\n"):
        line = _QUOTE.sub("", whole, count=1) if _QUOTE.match(whole) else whole
        in_note = in_note and (not line.strip() or _INDENTED.match(line) is not None)
        if fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
            yield from end()
        elif fence:
            lines.append(html.escape(line.strip(), quote=False))
        elif opening := _FENCE.match(line):
            fence = opening[1]
            yield from end()
        elif in_note:
            continue
        elif level := _level(line):
            yield from end()
            yield f"<h{level}>{_markup(_title(line))}</h{level}>"
        elif lines and (under := _UNDERLINE.fullmatch(line)):
            yield from end("h1" if under[1][0] == "=" else "h2")
        elif _is_rule(line):
            yield from end()
            yield "<hr>"
        elif definition := _DEFINITION.match(line):
            yield from end()
            if in_note := bool(definition[1]):
                yield '<aside role="doc-footnote">note</aside>'
        elif not line.strip():
            yield from end()
        else:
            if item := _ITEM.match(line) or _NUMBERED.match(line):
                yield from end()
                line = line[item.end() :] if item.re is _ITEM else line
            lines.append(line.strip())
    yield from end()


def _level(line: str) -> int:
    """Return a heading's level by its #, or 0 for another line."""
    rest = line.lstrip(" ")
    level = len(rest) - len(rest.lstrip("#"))
    is_heading = len(line) - len(rest) < 4 and level < 7 and (rest[level : level + 1].isspace() or len(rest) == level)
    return level if is_heading else 0


def _title(line: str) -> str:
    """Return a heading's text, without the # before and after it."""
    title = line.strip(" ").lstrip("#").strip()
    bare = title.rstrip("#")
    return bare if bare[-1:].isspace() else title


def _is_rule(line: str) -> bool:
    """True if a line is three or more of one mark, with any blanks between them."""
    signs = "".join(line.split())
    begins = line[:4].lstrip(" ")[:1]  # indented by at most three blanks
    return len(signs) > 2 and signs[0] in "*-_" and signs[0] == begins and not signs.strip(begins)


def _markup(text: str) -> str:
    text = _CODE.sub(lambda code: code[0].replace("<", "&lt;"), text)
    for pattern, instead in _LINKS:
        text = pattern.sub(instead, text)
    return _OPEN.sub("&lt;", text)


def _plain(text: str) -> str:
    return " ".join(_ESCAPED.sub(r"\1", without_low_lines(without_stars(text))).split())
