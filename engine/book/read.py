"""Read a file or a text as a book, by its kind. Reports an error if nothing can be read aloud."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ..core.config import MOST_BOOK_BYTES, MOST_BOOK_CHARACTERS, MOST_BOOK_LINES
from ..core.errors import HiggsError
from ..files.plain_text import encodable, read_plain_text
from ..prompt.dialogue import read_dialogue
from ..prompt.script import Turn, read_pauses
from ..prompt.tags import every_tag, is_spoken
from .book import BREAK, Book, Chapter, title_of
from .epub import read_epub
from .markdown import read_markdown
from .text import is_heading, read_text

_MARKDOWN = (".md", ".markdown")
SUFFIXES = (".txt", *_MARKDOWN, ".epub")
_HASH = re.compile(r"^ {0,3}#{1,6}[^\S\n]+\S", re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n\s*")


def read_book(
    path: Path, is_script: bool = False, known: Iterable[str] = (), knows_tag: Callable[[str], bool] = every_tag
) -> Book:
    """Read a .txt, .md or .epub file, or a script, as a book. known, knows_tag: see `read_dialogue`.

    Raises HiggsError that names the file if it cannot be read or has no text.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise HiggsError(f"{path} is not a supported book. Choose a file ending in {', '.join(SUFFIXES)}.")
    if not path.is_file():  # reading a pipe would never end
        raise HiggsError(f"{path} does not exist. Choose another file.")
    if suffix == ".epub":
        if is_script:
            raise HiggsError(f"{path} is an EPUB, but a script must be a text file. Save it as .txt.")
        return _checked(read_epub(path), str(path))
    try:
        text, doubts = read_plain_text(path, MOST_BOOK_BYTES)
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Choose another file.") from error
    read = _script_reader(known, knows_tag) if is_script else read_markdown if suffix in _MARKDOWN else read_text
    book = read(_bounded(text, str(path)), encodable(path.stem))
    return _checked(replace(book, warnings=(*book.warnings, *doubts)), str(path))


def read_book_text(
    text: str,
    title: str,
    is_script: bool = False,
    known: Iterable[str] = (),
    knows_tag: Callable[[str], bool] = every_tag,
) -> Book:
    """Like `read_book`, from a text: Markdown if it has # headings, else plain. knows_tag: see `read_dialogue`."""
    text = text.removeprefix("\ufeff")  # files' readers do so
    read = _script_reader(known, knows_tag) if is_script else read_markdown if _HASH.search(text) else read_text
    return _checked(read(_bounded(text, "The text"), encodable(title)), "The text")


def _bounded(text: str, source: str) -> str:
    if len(text) > MOST_BOOK_CHARACTERS or text.count("\n") > MOST_BOOK_LINES:
        raise HiggsError(
            f"{source} has {len(text):,} characters in {text.count(chr(10)) + 1:,} lines, but at most "
            f"{MOST_BOOK_CHARACTERS:,} in {MOST_BOOK_LINES:,} can be read. Split it."
        )
    return encodable(text)


def _checked(book: Book, source: str) -> Book:
    if not book.chapters:
        raise HiggsError(f"{source} has nothing to read aloud. Choose a book that contains text.")
    return book


def _script_reader(known: Iterable[str], knows_tag: Callable[[str], bool]) -> Callable[[str, str], Book]:
    """Return a reader of scripts. A heading such as CHAPTER II on its own line starts a chapter."""

    def read(text: str, title: str) -> Book:
        dialogue = read_dialogue(text, known, knows_tag)
        chapters: list[tuple[str, list[tuple[Turn, list[str]]]]] = [(title, [])]  # turns, each with its paragraphs
        narrator = "" if "" in dialogue.speakers else next(iter(dialogue.speakers), "")
        for turn in dialogue.turns:
            for part in _PARAGRAPHS.split(turn.text):
                heading, _, rest = part.partition("\n")
                if is_heading(heading):
                    chapters.append((title_of(heading), [(Turn(narrator, ""), [heading, BREAK])]))
                    part = rest
                pauses = read_pauses(part)
                if is_spoken(pauses.text):
                    chapters[-1][1].append((turn, [part.strip()]))
                elif chapters[-1][1] and pauses.pauses:
                    chapters[-1][1][-1][1].append(part.strip())
        made = tuple(
            Chapter(name, tuple(replace(turn, text=" ".join(parts)) for turn, parts in turns))
            for name, turns in chapters
            if turns
        )
        return Book(title, made, head=dialogue.head, warnings=dialogue.warnings)

    return read
