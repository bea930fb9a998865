"""Text files in whatever encoding an editor saved. Knows nothing of what is in them."""

from __future__ import annotations

import codecs


def decode_text(data: bytes, declared: str = "") -> str:
    """UTF-8, UTF-16 as Windows writes it, what the file declares, or else Windows' old Western code page."""
    encodings = ["utf-8-sig", *([declared] if declared else [])]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ["utf-16"]
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):  # the latter of a name that nobody knows
            continue
    return data.decode("utf-16" if encodings == ["utf-16"] else "cp1252", errors="replace")


def doubts(data: bytes, name: str) -> tuple[str, ...]:
    """A warning where `decode_text` had to guess, which letters beyond A to Z tell."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return ()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return (f"{name} is not UTF-8 and was read as Windows-1252. If letters are wrong, save it as UTF-8.",)
    return ()
