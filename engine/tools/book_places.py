"""Several books in one run of `narrate`: a folder for each, and a fault stops no other book."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..book.chapters import portable
from ..book.read import SUFFIXES
from ..core.errors import HiggsError
from ..files.plain_text import encodable


def book_places(given: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """Return (book, output folder) for files and folders of books. A single file gets `out` itself.

    Raises HiggsError if a folder has no books, or two books have the same name.
    """
    if len(given) == 1 and not given[0].is_dir():
        return [(given[0], out)]
    places: dict[str, tuple[Path, Path]] = {}
    for path in (book for one in given for book in _books_at(one)):
        name = portable(encodable(path.stem)) or "book"
        other, _ = places.setdefault(name.casefold(), (path, out / name))
        if other.resolve() != path.resolve():  # a book may be given twice, as a file and in its folder
            raise HiggsError(f"{other} and {path} would be written to the same folder, {out / name}. Rename one.")
    return list(places.values())


def _books_at(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [one for one in path.iterdir() if not one.name.startswith(".")]  # macOS leaves a ._name beside each
    if not (books := sorted(one for one in files if one.suffix.lower() in SUFFIXES)):
        raise HiggsError(f"{path} has no books. Choose a folder with files ending in {', '.join(SUFFIXES)}.")
    return books


@contextlib.contextmanager
def fault_of(path: Path, failed: list[Path], is_alone: bool) -> Iterator[None]:
    """Name a book that fails and note it in `failed`. The error of a book that is alone is not caught."""
    try:
        yield
    except HiggsError as error:
        if is_alone:
            raise
        failed.append(path)
        print(f"error: {path.name}: {error}", file=sys.stderr)
