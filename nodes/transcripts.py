"""Text files beside clips that hold what is said in them, in whatever encoding an editor saved."""

from __future__ import annotations

import codecs
from pathlib import Path

SUFFIXES = (".reference.txt", ".txt")  # the first that is there counts


def transcript_of(clip: Path) -> tuple[str, str]:
    """(What is said in a clip, name of the file that says so); both empty when no text file lies beside it."""
    for suffix in SUFFIXES:
        path = clip.with_suffix(suffix)
        if path.is_file():
            return _decode(path.read_bytes()), path.name
    return "", ""


def _decode(data: bytes) -> str:
    """UTF-8, UTF-16 as Windows writes it, or else Windows' old Western code page."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").strip()
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace").strip()
