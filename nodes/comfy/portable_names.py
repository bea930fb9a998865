"""Names that every system takes for files and folders, and that lead nowhere else. Reads no disk."""

from __future__ import annotations

MAX_NAME_BYTES = 200  # file systems take 255, and a suffix is added, and another while the file is written
RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}


def portable_parts(name: str) -> list[str]:
    """The folders and the file that `name` spells, with either slash; nothing where one of them is not portable."""
    parts = name.replace("\\", "/").split("/")
    return parts if all(map(_is_portable, parts)) else []


def _is_portable(part: str) -> bool:
    """True if every system takes `part` as the name of a file or folder."""
    if part.strip(" .") != part or not 0 < len(part.encode(errors="replace")) <= MAX_NAME_BYTES:
        return False
    if part.split(".")[0].upper() in RESERVED:
        return False
    return all(character.isprintable() and character not in '<>:"|?*' for character in part)
