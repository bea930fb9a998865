"""Names that are valid for files and folders on every system, and that lead nowhere else."""

from __future__ import annotations

import unicodedata

MAX_NAME_BYTES = 200  # file systems allow 255; leaves room for a suffix, and another while the file is written
RESERVED = {
    "CON",
    "CONIN$",
    "CONOUT$",
    "PRN",
    "AUX",
    "NUL",
    *(f"{port}{number}" for port in ("COM", "LPT") for number in "123456789¹²³"),
}


def portable_parts(name: str) -> list[str]:
    """Split `name` at either slash into folders and file, with composed letters: some systems write é as two.

    Returns nothing if a part is not portable.
    """
    parts = composed(name).replace("\\", "/").split("/")
    return parts if all(map(_is_portable, parts)) else []


def composed(text: str) -> str:
    """Return a text with composed letters, by which names are compared."""
    return unicodedata.normalize("NFC", text)


def _is_portable(part: str) -> bool:
    if part.strip(" .") != part or not 0 < len(part.encode(errors="replace")) <= MAX_NAME_BYTES:
        return False
    if part.split(".")[0].rstrip().upper() in RESERVED:
        return False
    return all(character.isprintable() and character not in '<>:"|?*' for character in part)
