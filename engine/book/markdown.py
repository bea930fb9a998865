"""Markdown as chapters: what # headings part, without the signs that only shape how it looks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from .book import Book, Paragraph, make_chapters

_FRONT = re.compile(r"---[^\S\n]*\n(.*?)\n(?:---|\.\.\.)[^\S\n]*(?:\n|$)", re.DOTALL)
_FIELD = re.compile(r"^(title|author):[^\S\n]*(.+)$", re.MULTILINE | re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[^\S\n]+(.*?))?(?:[^\S\n]+#+)?[^\S\n]*")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[^\S\n]*")
_RULE = re.compile(r" {0,3}(?:(?:\*[^\S\n]*){3,}|(?:-[^\S\n]*){3,}|(?:_[^\S\n]*){3,})")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_QUOTE = re.compile(r"(?: {0,3}> ?)+")
_ITEM = re.compile(r"\s*[-*+][^\S\n]+")
_NUMBERED = re.compile(r"\s*\d+[.)][^\S\n]+")
_DEFINITION = re.compile(r" {0,3}\[[^\]\n]+\]:[^\S\n]*\S")  # of a link or a footnote
_INLINE = [
    (re.compile(r"!\[[^\]\n]*\](?:\([^)\n]*\)|\[[^\]\n]*\])"), ""),  # a picture
    (re.compile(r"\[\^[^\]\n]+\]"), ""),  # a footnote's mark
    (re.compile(r"\[([^\]\n]+)\](?:\([^)\n]*\)|\[[^\]\n]*\])"), r"\1"),  # a link
    (re.compile(r"<(https?://[^\s<>]+)>"), r"\1"),
    (re.compile(r"</?[A-Za-z][^<>|]*>"), ""),  # HTML; <|...|> is a control tag
    (re.compile(r"(?<!\\)(\*{1,3}|~~|`+)(?=\S)(.+?)(?<=\S)(?<!\\)\1"), r"\2"),
    (re.compile(r"(?<![\w\\])(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),
]


def read_markdown(text: str, title: str) -> Book:
    """A book in Markdown. Its chapters stand at the highest level that has several headings; a single one above them,
    before any text, is the book's title. title: what it is called otherwise.
    """
    text, author = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n"), ""
    if front := _FRONT.match(text):
        told = {name.lower(): value.strip().strip("\"'") for name, value in _FIELD.findall(front[1])}
        title, author = told.get("title", title), told.get("author", "")
        text = text[front.end() :]
    blocks = list(_blocks(_COMMENT.sub("", text)))
    counts = Counter(level for level, _ in blocks if level)
    level = min((level for level, count in counts.items() if count > 1), default=min(counts, default=0))
    first = next(((at, plain) for at, plain in blocks if at or plain), (0, ""))
    if 0 < first[0] < level:
        title = first[1] or title
    parts: list[tuple[str, list[Paragraph]]] = [("", [])]
    for at, plain in blocks:
        if 0 < at <= level:
            parts.append((plain, []))
        parts[-1][1].append(Paragraph(plain, is_heading=at > 0))
    return Book(title, make_chapters(title, parts), author)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """(level of a heading, or 0; its text) of each paragraph; an empty text is a break."""
    said: list[str] = []
    fenced = False

    def end() -> Iterator[tuple[int, str]]:
        if plain := _plain(" ".join(said)):
            yield 0, plain
        said.clear()

    for whole in text.split("\n"):
        line = _QUOTE.sub("", whole, count=1) if _QUOTE.match(whole) else whole
        if _FENCE.match(line):
            fenced = not fenced
            yield from end()
        elif fenced:
            said.append(line.strip())
        elif heading := _HEADING.fullmatch(line):
            yield from end()
            yield len(heading[1]), _plain(heading[2] or "")
        elif said and (under := _UNDERLINE.fullmatch(line)):
            plain = _plain(" ".join(said))
            said.clear()
            yield 1 if under[1][0] == "=" else 2, plain
        elif _RULE.fullmatch(line):
            yield from end()
            yield 0, ""
        elif not line.strip() or _DEFINITION.match(line):
            yield from end()
        else:
            if item := _ITEM.match(line) or _NUMBERED.match(line):
                yield from end()
                line = line[item.end() :] if item.re is _ITEM else line
            said.append(line.strip())
    yield from end()


def _plain(text: str) -> str:
    for pattern, instead in _INLINE:
        text = pattern.sub(instead, text)
    return " ".join(text.split())
