"""Read a book's details and the chapters to leave out, as users write them."""

from __future__ import annotations

import io
import re
from dataclasses import fields, replace

from ..core.errors import HiggsError, shown_name
from ..core.optional import import_optional
from ..files.plain_text import encodable
from .book import Book, BookDetails
from .credits import with_credits

_LINE = re.compile(r"\s*([A-Za-z]+)\s*[=:]\s*(.*?)\s*")
_RANGE = re.compile(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", re.ASCII)
_OF_BOOK = ("title", "author")
_CREDITS = ("opening", "closing")
_NAMES = (*_OF_BOOK, *(field.name for field in fields(BookDetails) if field.name != "cover"), *_CREDITS)
_MOST = 4000  # characters of a value
_YEAR = re.compile(r"\d{4}(-\d\d){0,2}", re.ASCII)
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def with_details(book: Book, text: str, cover: bytes | None = None, credits: bool = False) -> Book:
    """Return the book with lines such as `narrator = Anna`, a cover if one is given, and spoken credits.

    credits: make those that no line `opening = ...` or `closing = ...` gives. Raises HiggsError for another line, a
    cover for which `is_picture` is false, or like `with_credits`.
    """
    given: dict[str, str] = {}
    for line in filter(str.strip, encodable(text).splitlines()):
        match = _LINE.fullmatch(line)
        name = match[1].lower() if match else ""
        if not match or name not in _NAMES:
            raise HiggsError(f"details has {shown_name(line.strip())!r}. Write lines such as narrator = Anna, with one "
                             f"of: {', '.join(_NAMES)}.")  # fmt: skip
        given[name] = match[2][:_MOST]
    if given.get("year") and not _YEAR.fullmatch(given["year"]):
        raise HiggsError(f"details has the year {given['year'][:40]!r}. Write it as 2026.")
    if cover is not None and not is_picture(cover):
        raise HiggsError("the cover cannot be read as a JPEG or PNG picture. Choose another one.")
    own = {name: given.pop(name) for name in _OF_BOOK if name in given}
    pictures = {"cover": cover} if cover else {}
    spoken = [given.pop(name, None) for name in _CREDITS]
    return with_credits(replace(book, **own, details=replace(book.details, **given, **pictures)), credits, *spoken)


def is_picture(data: bytes) -> bool:
    """True for the bytes of a JPEG or PNG file, which players take as a cover, unless PyAV finds it damaged."""
    if not data.startswith(_PICTURES):
        return False
    try:
        open_file, damaged = import_optional("av", "open"), import_optional("av", "FFmpegError")
    except HiggsError:  # then no file with a cover can be written
        return True
    try:
        with open_file(io.BytesIO(data)) as picture:
            return picture.streams.video[0].width > 0  # what FFmpeg cannot decode has no size
    except (damaged, IndexError):
        return False


def without_chapters(book: Book, text: str) -> Book:
    """Return the book without the chapters that a text such as `1, 3-5` lists, and with them in `left_out`.

    Raises HiggsError for anything else, a number that no chapter has, or if nothing is left.
    """
    out: set[int] = set()
    for part in filter(str.strip, text.split(",")):
        match = _RANGE.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        if not 1 <= first <= last <= len(book.chapters):
            raise HiggsError(
                f"leave_out has {part.strip()[:40]!r}. Enter numbers of chapters from 1 to {len(book.chapters)}, such "
                "as 1, 3-5."
            )
        out |= {*range(first, last + 1)}
    if not out:
        return book
    numbered = list(enumerate(book.chapters, 1))
    kept = tuple(chapter for number, chapter in numbered if number not in out)
    if not kept:
        raise HiggsError("leave_out lists every chapter of the book. Leave one of them.")
    named = tuple(f"chapter {number} ({chapter.title})" for number, chapter in numbered if number in out)
    return replace(book, chapters=kept, left_out=(*book.left_out, *named))
