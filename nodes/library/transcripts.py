"""Text files beside clips that hold what is said in them."""

from __future__ import annotations

from pathlib import Path

from ...engine import decode_text

SUFFIXES = (".reference.txt", ".txt")  # the first that is there counts


def transcript_of(clip: Path) -> tuple[str, str]:
    """(What is said in a clip, name of the file that says so); both empty when no text file lies beside it."""
    for suffix in SUFFIXES:
        path = clip.with_suffix(suffix)
        if path.is_file():
            return decode_text(path.read_bytes()).strip(), path.name
    return "", ""
