"""The sound files of a book, listed on the page for playing and saving. Reads no audio."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ...engine import BookFile, BookReport
from ..comfy import folders
from . import events

CHAPTERS = "higgs_tts.chapters"  # event: another chapter of a book is complete


def chapters_of(report: BookReport) -> list[dict]:
    """Describe each file: its URL parts, its length, and a version that changes with the file."""
    return _entries(report.folder, report.files)


def chapter_teller(folder: Path, node_id: str) -> Callable[[BookFile], None]:
    """Return a callback that sends the page the book's chapters after each new file in `folder`."""
    there: list[BookFile] = []

    def on_file(file: BookFile) -> None:
        there.append(file)
        there.sort(key=lambda one: one.name)
        if file.made:
            events.tell(CHAPTERS, node_id, chapters=_entries(folder, there))

    return on_file


def _entries(folder: Path, files: Iterable[BookFile]) -> list[dict]:
    """Describe the files that are still there: the user may have moved some."""
    entries = []
    for file in files:
        with contextlib.suppress(OSError):
            entries.append(_entry(folder, file))
    return entries


def _entry(folder: Path, file: BookFile) -> dict:
    return {
        "filename": file.name,
        "subfolder": folder.relative_to(folders.output()).as_posix(),
        "version": str((folder / file.name).stat().st_mtime_ns),
        "seconds": round(file.seconds, 1),
    }
