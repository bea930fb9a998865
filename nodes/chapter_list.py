"""The sound files of a book as the page lists them, to be heard and saved. Reads no sound."""

from __future__ import annotations

from ..engine import BookReport
from . import folders


def chapters_of(report: BookReport) -> list[dict]:
    """Of each file: where ComfyUI serves it, how long it is, and a version, which another file of its name has not."""
    subfolder = report.folder.relative_to(folders.output()).as_posix()
    return [
        {
            "filename": file.name,
            "subfolder": subfolder,
            "version": str((report.folder / file.name).stat().st_mtime_ns),
            "seconds": round(file.seconds, 1),
        }
        for file in report.files
    ]
