"""The sound files of a book as the page lists them, to be heard and saved. Reads no sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...engine import BookFile, BookReport
from ..comfy import folders
from . import events

CHAPTERS = "higgs_tts.chapters"  # the event: another chapter of a book is whole


def chapters_of(report: BookReport) -> list[dict]:
    """Of each file: where ComfyUI serves it, how long it is, and a version, which another file of its name has not."""
    return [_entry(report.folder, file) for file in report.files]


def chapter_teller(folder: Path, node_id: str) -> Callable[[BookFile], None]:
    """A function that tells the page what there is of a book in `folder` whenever a run has made another file."""
    there: list[BookFile] = []

    def on_file(file: BookFile) -> None:
        there.append(file)
        there.sort(key=lambda one: one.name)
        if file.made:
            events.tell(CHAPTERS, node_id, chapters=[_entry(folder, one) for one in there])

    return on_file


def _entry(folder: Path, file: BookFile) -> dict:
    return {
        "filename": file.name,
        "subfolder": folder.relative_to(folders.output()).as_posix(),
        "version": str((folder / file.name).stat().st_mtime_ns),
        "seconds": round(file.seconds, 1),
    }
