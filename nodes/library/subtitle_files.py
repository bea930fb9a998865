"""Subtitles given to a node as text or as a file name."""

from __future__ import annotations

from pathlib import Path

from ...engine import HiggsError, file_stamp, read_plain_text
from ..comfy.allowed import readable

SUFFIXES = (".srt", ".vtt")


def subtitle_text(given: str) -> tuple[str, tuple[str, ...]]:
    """Return (text, warnings), reading the file if one is named. Raises HiggsError if it may not be read."""
    path = _path(given)
    if path is None:
        return given, ()
    try:
        if not path.is_file():
            raise HiggsError(
                f"there is no file {given.strip()[:80]!r} in ComfyUI's input folder. Put it there, or paste its text."
            )
        return read_plain_text(path)
    except OSError as error:
        reason = error.strerror or error
        raise HiggsError(f"{given.strip()[:80]!r} cannot be read: {reason}. Paste its text instead.") from error


def fingerprint(given: str) -> list:
    """Return [bytes, modification time] of a named file, nothing for a text."""
    return file_stamp(_path(given))


def _path(given: str) -> Path | None:
    name = given.strip().strip("\"'")
    if "\n" in name or not name.lower().endswith(SUFFIXES):
        return None
    return readable(name)
