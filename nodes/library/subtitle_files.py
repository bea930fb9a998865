"""Subtitles as a node is given them: their text, or the name of a file."""

from __future__ import annotations

from pathlib import Path

from ...engine import HiggsError, file_stamp, read_plain_text
from ..comfy.allowed import readable

SUFFIXES = (".srt", ".vtt")


def subtitle_text(given: str) -> tuple[str, tuple[str, ...]]:
    """(the text, or that of the file it names; warnings). Raises HiggsError for a file that is not to be read."""
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
    """[bytes, time of the last change] of the file that is named, nothing for a text."""
    return file_stamp(_path(given))


def _path(given: str) -> Path | None:
    name = given.strip().strip("\"'")
    if "\n" in name or not name.lower().endswith(SUFFIXES):
        return None
    return readable(name)
