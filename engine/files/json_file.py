"""Text, JSON and numbers of a checkpoint as downloads, editors and strangers leave them."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.config import MOST_JSON_BYTES
from ..core.errors import HiggsError, shown
from .gguf_header import is_gguf, read_gguf
from .whole_file import read_whole

FETCH = "git lfs pull"
_POINTER = b"version https://git-lfs.github.com/spec/"  # what git writes in place of a file that Git LFS keeps


def refuse_pointer(path: Path, beginning: bytes) -> None:
    """Raises HiggsError for a file that begins as Git LFS pointers do, naming the command that fetches the real one."""
    if beginning.startswith(_POINTER):
        raise HiggsError(
            f"{path} is a Git LFS pointer, not the file itself. Run '{FETCH}' in {path.parent}, "
            "or download the file from the model's page."
        )


def read_text(path: Path) -> str:
    """The text in `path`, without the byte order mark that Windows editors put in front of it.

    A file inside a GGUF file is read by that file's path as if it were a folder. Raises HiggsError where the file is
    missing or too large, is a Git LFS pointer, or is not UTF-8.
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
    """The JSON object that `text`, read from `source`, spells. Raises HiggsError where it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 2,000 deep
        raise HiggsError(f"{source} is not valid JSON ({error}). Download it again.") from error
    if not isinstance(value, dict):
        raise HiggsError(f"{source} does not hold a JSON object. Download it again.")
    return value


def read_json(path: Path) -> dict:
    """The object in `path`. Raises HiggsError where the file is missing or does not hold a JSON object."""
    return parse_object(path, read_text(path))


def number(value: object, what: str, low: float, high: float) -> float:
    """A number that a file holds. Raises HiggsError, which calls it `what`, outside low..high and for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise HiggsError(f"{what} is {shown(value)}, not a number from {low:g} to {high:g}. Download the file again.")
    return float(value)


def whole(value: object, what: str, low: int, high: int) -> int:
    """As `number`, of a whole one, which may be spelled 8.0."""
    found = number(value, what, low, high)
    if not found.is_integer():
        raise HiggsError(f"{what} is {shown(value)}, not a whole number. Download the file again.")
    return int(found)
