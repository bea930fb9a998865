"""Reader of GGUF headers: settings, and tensors with their offsets.

Follows ggml's docs/gguf.md, versions 2 and 3. The gguf package's reader makes an object of every number in an array,
and audio.cpp stores tokenizer.json as an array of 11 million bytes: one million took that reader a minute and 0.8 GB.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..core.config import MOST_DIMENSIONS, MOST_GGUF_BYTES, MOST_GGUF_ITEMS, MOST_JSON_BYTES, MOST_NAME
from ..core.errors import HiggsError, shown_name

SUFFIX = ".gguf"
_ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
# Value type -> struct format character.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_WHOLE = "BbHhIiQq"
_REMEDY = "Download it again."


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: shape [out, in] in torch's order, ggml type number, and byte offset in the file."""

    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass
class GgufHeader:
    """Values and tensors of a file by name. Arrays of numbers are (offset, count, struct format character)."""

    path: Path
    values: dict[str, object] = field(default_factory=dict)
    arrays: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    tensors: dict[str, GgufTensor] = field(default_factory=dict)

    def array(self, name: str) -> list[int]:
        """Return an array of non-negative integers. Empty if there is none of that name."""
        if name not in self.arrays:
            return []
        offset, count, letter = self.arrays[name]
        if letter not in _WHOLE or count > MOST_GGUF_ITEMS:
            raise self.damaged(name)
        numbers = list(struct.unpack(f"<{count}{letter}", self._bytes(offset, count * struct.calcsize(letter))))
        if min(numbers, default=0) < 0:
            raise self.damaged(name)
        return numbers

    def damaged(self, name: str) -> HiggsError:
        return HiggsError(f"{self.path}: its entry for {shown_name(name)} is damaged. {_REMEDY}")

    def embedded(self, name: str) -> bytes | None:
        """Return a file that audio.cpp embedded in this one. None if there is none of that name."""
        names = self.values.get("audiocpp.embedded_files.names")
        if not isinstance(names, list) or name not in names:
            return None
        index = names.index(name)
        contents = self.values.get("audiocpp.embedded_files.contents")
        if isinstance(contents, list) and index < len(contents):
            return contents[index].encode()
        offsets, data = self.array("audiocpp.embedded_files.offsets"), self.arrays.get("audiocpp.embedded_files.data")
        if data is None or data[2] not in "bB" or len(offsets) != len(names) + 1:
            raise self.damaged(name)
        start, size = offsets[index], offsets[index + 1] - offsets[index]
        if not 0 <= size <= min(data[1] - start, MOST_JSON_BYTES):
            raise self.damaged(name)
        return self._bytes(data[0] + start, size)

    def _bytes(self, offset: int, size: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


def is_gguf(path: Path) -> bool:
    """True if `path` is a file with the GGUF suffix."""
    return path.suffix.lower() == SUFFIX and path.is_file()


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of a GGUF file. Raises HiggsError if it is damaged or not a GGUF file."""
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror}). {_REMEDY}") from error


@functools.lru_cache(maxsize=16)
def _read(path: Path, size: int, _time: int) -> GgufHeader:
    with path.open("rb") as file:
        reader = _HeaderReader(file, path, size)
        if file.read(4) != b"GGUF":
            raise HiggsError(f"{path} is not a GGUF file, or its beginning is damaged. {_REMEDY}")
        version = reader.number("I")
        if version not in (2, 3):
            raise HiggsError(
                f"{path} is GGUF version {version}, but only versions 2 and 3 are supported. Use the Q8_0 file."
            )
        count, settings = reader.count(), reader.count()
        header = GgufHeader(path)
        for _ in range(settings):
            reader.setting(header)
        placed = [reader.tensor() for _ in range(count)]
        alignment = header.values.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= size:
            raise header.damaged(_ALIGNMENT)
        start = -(-file.tell() // alignment) * alignment
    _name(header, placed, start)
    return header


def _name(header: GgufHeader, placed: list[tuple[str, tuple[int, ...], int, int]], start: int) -> None:
    """Add tensors under audio.cpp's names and shapes. ggml's names are shortened, and its shapes drop ones."""
    names = header.values.get("audiocpp.tensor_names")
    names = names if isinstance(names, list) and len(names) == len(placed) else [name for name, *_ in placed]
    ranks, sizes = header.array("audiocpp.tensor_ranks"), header.array("audiocpp.tensor_shapes")
    at = 0
    for index, (name, (_, shape, type, offset)) in enumerate(zip(names, placed, strict=True)):
        if len(ranks) == len(placed):
            rank = min(ranks[index], MOST_DIMENSIONS)
            own = tuple(sizes[at : at + rank]) if sizes else (1,) * (rank - len(shape)) + shape
            at += rank
            if math.prod(own) != math.prod(shape):
                raise header.damaged(name)
            shape = own
        if name in header.tensors or len(name) > MOST_NAME or not name.isprintable():
            raise header.damaged(name)
        header.tensors[name] = GgufTensor(shape, type, start + offset)


class _HeaderReader:
    """Reads values in file order. Raises HiggsError if a length exceeds the file."""

    def __init__(self, file: BinaryIO, path: Path, size: int):
        self._file, self._path, self._size = file, path, size
        self._bytes, self._items = MOST_GGUF_BYTES, MOST_GGUF_ITEMS  # remaining budget

    def damaged(self) -> HiggsError:
        return HiggsError(f"The header of {self._path} is damaged or cut short. {_REMEDY}")

    def _take(self, size: int) -> bytes:
        self._bytes -= size
        data = self._file.read(size) if 0 <= size <= self._size and self._bytes >= 0 else b""
        if len(data) != size:
            raise self.damaged()
        return data

    def count(self) -> int:
        """Read the number of entries that follow."""
        count = self.number("Q")
        self._items -= count
        if self._items < 0:
            raise self.damaged()
        return count

    def number(self, letter: str) -> int:
        (value,) = struct.unpack(f"<{letter}", self._take(struct.calcsize(letter)))
        return value

    def string(self) -> str:
        try:
            return self._take(self.number("Q")).decode()
        except UnicodeDecodeError as error:
            raise self.damaged() from error

    def setting(self, header: GgufHeader) -> None:
        name, kind = self.string(), self.number("I")
        if kind == _STRING:
            header.values[name] = self.string()
        elif kind in _SCALARS:
            header.values[name] = self.number(_SCALARS[kind])
        elif kind != _ARRAY:
            raise self.damaged()
        elif (item := self.number("I")) == _STRING:
            header.values[name] = [self.string() for _ in range(self.count())]
        elif item in _SCALARS:
            letter, count = _SCALARS[item], self.number("Q")
            header.arrays[name] = self._file.tell(), count, letter
            end = self._file.tell() + count * struct.calcsize(letter)
            if end > self._size:
                raise self.damaged()
            self._file.seek(end, os.SEEK_SET)
        else:
            raise self.damaged()

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return (name, shape in torch's order, type, offset from the end of the header)."""
        name, rank = self.string(), self.number("I")
        if rank > MOST_DIMENSIONS:
            raise self.damaged()
        shape = tuple(self.number("Q") for _ in range(rank))[::-1]
        return name, shape, self.number("I"), self.number("Q")
