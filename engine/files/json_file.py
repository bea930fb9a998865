"""Defensive reading of a checkpoint's text, JSON and numbers."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.config import MOST_JSON_BYTES
from ..core.errors import HiggsError, shown
from .gguf_header import is_gguf, read_gguf
from .whole_file import read_whole

FETCH = "git lfs pull"
_POINTER = b"version https://git-lfs.github.com/spec/"  # beginning of a Git LFS pointer


def refuse_pointer(path: Path, beginning: bytes) -> None:
    """Raise HiggsError if a file is a Git LFS pointer, with the command that fetches the file."""
    if beginning.startswith(_POINTER):
        raise HiggsError(
            f"{path} is a Git LFS pointer, not the file itself. Run '{FETCH}' in {path.parent}, "
            "or download the file from the model's page."
        )


def read_text(path: Path) -> str:
    """Return the text in `path`, without a byte order mark.

    A GGUF file counts as a folder of its embedded files. Raises HiggsError if the file is missing, too large, a Git LFS
    pointer or not UTF-8.
    """
    try:
        inside = read_gguf(path.parent).embedded(path.name) if is_gguf(path.parent) else None
        data = read_whole(path, MOST_JSON_BYTES) if inside is None else inside
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror}). Download the whole model folder.") from error
    refuse_pointer(path, data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HiggsError(f"{path} is not UTF-8 text ({error.reason}). Download it again.") from error


def parse_object(source: Path | str, text: str | bytes) -> dict:
    """Parse `text`, read from `source`, as a JSON object. Raises HiggsError if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # such as a number of 5,000 digits, or brackets 2,000 deep
        raise HiggsError(f"{source} is not valid JSON ({error}). Download it again.") from error
    if not isinstance(value, dict):
        raise HiggsError(f"{source} does not hold a JSON object. Download it again.")
    return value


def read_json(path: Path) -> dict:
    """Read the JSON object in `path`. Raises HiggsError if the file is missing or holds no JSON object."""
    return parse_object(path, read_text(path))


def number(value: object, name: str, low: float, high: float) -> float:
    """Check a number from a file. Raises HiggsError, naming `name`, if it is not a number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise HiggsError(f"{name} is {shown(value)}, not a number from {low:g} to {high:g}. Download the file again.")
    return float(value)


def whole(value: object, name: str, low: int, high: int) -> int:
    """Check an integer like `number`. Accepts 8.0."""
    exact = number(value, name, low, high)
    if not exact.is_integer():
        raise HiggsError(f"{name} is {shown(value)}, not a whole number. Download the file again.")
    return int(exact)
