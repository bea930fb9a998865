"""Locations of tensors in safetensors and .pth files. Every name and number in the headers is checked."""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch

from ..core.config import MOST_DIMENSIONS, MOST_HEADER_BYTES, MOST_NAME, MOST_TENSORS
from ..core.errors import HiggsError, shown
from ..files.json_file import parse_object, refuse_pointer

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Exceptions from PyTorch's reader if the bytes are not a checkpoint.
_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    AssertionError, pickle.UnpicklingError, zipfile.BadZipFile,
)  # fmt: skip
HALF = "The download is incomplete. Start it again; it resumes where it stopped."


@dataclass(frozen=True)
class Place:
    """Location of one tensor: its offset in a safetensors file, or the mapped tensor of a .pth."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0
    tensor: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def map(self) -> torch.Tensor:
        """Return the tensor in host memory, backed by the file. Pages are read when touched."""
        if self.tensor is not None:
            return self.tensor
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype)
        # Map only this tensor: mapping the whole file makes Windows reserve its full size in the page file.
        data = np.memmap(self.path, np.uint8, mode="c", offset=self.offset, shape=(self.nbytes,))
        return torch.from_numpy(data).view(self.dtype).view(self.shape)


def is_name(name: object) -> TypeGuard[str]:
    """True if this is a valid name of a tensor or a file of tensors."""
    return isinstance(name, str) and len(name) <= MOST_NAME and name.isprintable()


def places_in_safetensors(path: Path) -> tuple[dict[str, Place], dict[str, str]]:
    """Return (tensors, metadata) of a safetensors file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if not 2 <= length <= size - 8:
                refuse_pointer(path, length.to_bytes(8, "little") + file.read(64))
                raise HiggsError(f"{path} is not a safetensors file, or its beginning is damaged. Download it again.")
            if length > MOST_HEADER_BYTES:
                raise HiggsError(
                    f"{path} has a header of {length:,} bytes, but at most {MOST_HEADER_BYTES:,} can be "
                    "read. Download it again."
                )
            header = parse_object(f"The header of {path}", file.read(length))
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Download it again.") from error
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HiggsError(f"The header of {path} contains metadata that is not text. Download it again.")
    if len(header) > MOST_TENSORS:
        raise HiggsError(
            f"{path} contains {len(header):,} tensors, but at most {MOST_TENSORS:,} can be read from one "
            "file. Download it again."
        )
    places = {name: _place(path, name, entry, 8 + length) for name, entry in header.items()}
    end = max((place.offset + place.nbytes for place in places.values()), default=0)
    if end > size:
        raise HiggsError(f"{path} is cut short: {size:,} bytes of {end:,}. {HALF}")
    refuse_shared(path, places, size)
    return places, metadata


def refuse_shared(path: Path, places: Mapping[str, Place], size: int) -> None:
    """Raise HiggsError if tensors share bytes of a file, which could take many times its size in memory."""
    if sum(place.nbytes for place in places.values()) > size - min((one.offset for one in places.values()), default=0):
        raise HiggsError(f"The header of {path} is damaged: its tensors are larger than the file. Download it again.")


def _place(path: Path, name: str, entry: object, start: int) -> Place:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not is_name(name) or not is_shape(shape) or not is_shape(offsets) or len(offsets) != 2:
        called = name if is_name(name) else shown(name)
        raise HiggsError(f"The header of {path} is damaged at the tensor {called}. Download the file again.")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise HiggsError(f"{path}: {name} is stored as {shown(dtype)}, which is not supported. Use the bf16 files.")
    begin, end = offsets
    place = Place(path, tuple(shape), DTYPES[dtype], start + begin)
    if end - begin != place.nbytes:
        raise HiggsError(f"{path}: the header gives {name} the wrong size. Download the file again.")
    return place


def is_shape(sizes: object) -> TypeGuard[Sequence[int]]:
    """True if these are valid tensor sizes or file offsets: a few integers from 0 to 2**63 - 1."""
    return (
        isinstance(sizes, (list, tuple))
        and len(sizes) <= MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 63 for size in sizes)
    )


def places_in_pickle(path: Path, nested: bool = False) -> dict[str, Place]:
    """Return the tensors of a file by torch.save. Runs no code in it.

    nested: also read a table of modules' tables, "module" -> "weight" -> tensor, in which tied tensors share memory.
    """
    try:
        with path.open("rb") as file:
            refuse_pointer(path, file.read(64))
        if is_zip := zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type for entry in archive.infolist()):
                    raise ValueError("PyTorch compresses nothing")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except _UNREADABLE as error:
        raise HiggsError(f"{path} is damaged, cut short, or not a file of plain weights. Download it again.") from error
    state = _flat(state) if nested and isinstance(state, dict) else state
    is_table = isinstance(state, dict) and len(state) <= MOST_TENSORS
    if not is_table or not all(is_name(name) and isinstance(value, torch.Tensor) for name, value in state.items()):
        raise HiggsError(f"{path} is not a plain table of tensors. Use the file from the model's own repository.")
    for name, value in state.items():
        is_plain = value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized
        if not is_plain or value.nbytes > value.untyped_storage().nbytes():
            raise HiggsError(f"{path}: {name} is not a plain tensor. Use the file from the model's own repository.")
    places = {name: Place(path, tuple(value.shape), value.dtype, 0, value) for name, value in state.items()}
    apart = {(value.data_ptr(), tuple(value.shape)): name for name, value in state.items()} if nested else {}
    held = {name: places[name] for name in apart.values()} if nested else places
    refuse_shared(path, held, path.stat().st_size)
    return places


def _flat(state: dict) -> dict:
    """Join the names of a table of tables. Names that are not text or occur twice are left to be refused."""
    flat: dict = {}
    for name, value in state.items():
        inner = value if isinstance(value, dict) else {"": value}
        if not all(isinstance(one, str) for one in (name, *inner)):
            return {None: None}
        entries = {f"{name}.{leaf}".removesuffix("."): one for leaf, one in inner.items()}
        if entries.keys() & flat.keys():
            return {None: None}
        flat |= entries
    return flat
