"""Text files in whatever encoding an editor saved. Knows nothing of what is in them."""

from __future__ import annotations

import codecs


def decode_text(data: bytes) -> str:
    """UTF-8, UTF-16 as Windows writes it, or else Windows' old Western code page."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")
