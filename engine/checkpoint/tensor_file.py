"""Where tensors lie in files: names, shapes and bytes of safetensors and .pth files. Knows nothing of models."""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeGuard

import numpy as np
import torch

from ..config import MOST_DIMENSIONS, MOST_HEADER_BYTES, MOST_NAME, MOST_TENSORS
from ..errors import HiggsError, shown, shown_name
from ..json_file import parse_object, read_json, refuse_pointer

INDEX = "model.safetensors.index.json"
_DTYPES = {
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
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
# What PyTorch's reader raises for bytes that are not a checkpoint.
_UNREADABLE = (
    OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError,
    pickle.UnpicklingError, zipfile.BadZipFile,
)  # fmt: skip
_HALF = "The download is incomplete: start it again, and it resumes where it stopped."


@dataclass(frozen=True)
class Place:
    """One tensor: where its bytes begin in a safetensors file, or the mapped tensor of a .pth."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0
    tensor: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def map(self) -> torch.Tensor:
        """The tensor in host memory, backed by the file; pages are read when touched."""
        if self.tensor is not None:
            return self.tensor
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype)
        # Only this tensor is mapped. Mapping the file whole makes Windows reserve its full size in the page file.
        data = np.memmap(self.path, np.uint8, mode="c", offset=self.offset, shape=(self.nbytes,))
        return torch.from_numpy(data).view(self.dtype).view(self.shape)


class TensorFile:
    """One collection of named tensors, whatever files hold it. Nothing is read before `get`."""

    weights = ""  # the format next to that of its quantised layers, see quantised_file.py
    refused: Mapping[str, str] = MappingProxyType({})

    def __init__(self, places: dict[str, Place], metadata: Mapping[str, str] = MappingProxyType({})):
        self._places, self.metadata = places, metadata
        self.shapes: dict[str, tuple[int, ...]] = {name: place.shape for name, place in places.items()}
        self.dtypes: dict[str, torch.dtype] = {name: place.dtype for name, place in places.items()}

    @property
    def places(self) -> dict[str, Place]:
        """Where each tensor lies; for another view of the same files."""
        return self._places

    def is_quantised(self, name: str) -> bool:
        return False

    def stored_as(self, name: str) -> str:
        """How the file holds a tensor, for messages."""
        return str(self.dtypes[name]).removeprefix("torch.")

    def file_of(self, name: str) -> str:
        """Path of the file that holds `name`, for messages."""
        return str(self._places[name].path)

    def get(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tensor on `device`, in the file's dtype. On the CPU it is backed by the file: do not write to it."""
        return self._places[name].map().to(device)

    def span(self, name: str) -> tuple[Path, int] | None:
        """(file, offset of the first byte) of a tensor stored in one piece; None where only `get` can read it."""
        place = self._places[name]
        return (place.path, place.offset) if place.tensor is None else None

    def under(self, prefix: str) -> TensorFile:
        """The tensors whose names begin with `prefix`, under the names without it."""
        return TensorFile({n[len(prefix) :]: p for n, p in self._places.items() if n.startswith(prefix)})

    def renamed(self, names: Mapping[str, str]) -> TensorFile:
        """The same tensors; those that `names` lists under other names."""
        return TensorFile({names.get(name, name): place for name, place in self._places.items()}, self.metadata)


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: known by dtype and shape, made when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]


def write_tensors(path: Path, entries: Mapping[str, Entry]) -> None:
    """A safetensors file, one tensor in memory at a time. It gets its name when it is whole."""
    names, header, end = {dtype: name for name, dtype in _DTYPES.items()}, {}, 0
    for name, entry in entries.items():
        size = math.prod(entry.shape) * entry.dtype.itemsize
        header[name] = {"dtype": names[entry.dtype], "shape": list(entry.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, entry in entries.items():
            tensor = entry.make()
            assert tensor.dtype == entry.dtype and tuple(tensor.shape) == entry.shape, name
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)  # tofile hides a full disk
    unfinished.replace(path)


def open_tensors(paths: Sequence[Path | str]) -> TensorFile:
    """Read the headers of `paths` (.safetensors, .pth, .pt, .bin) as one collection.

    Raises HiggsError for a file that is missing, cut short, not what its name says, or repeats another's tensor.
    """
    places: dict[str, Place] = {}
    metadata: dict[str, str] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise HiggsError(f"{path} is missing. {_HALF}")
        found, said = _safetensors(path) if path.suffix == ".safetensors" else (_pickled(path), {})
        metadata.update(said)
        both = next((name for name in found if name in places), None)
        if both is not None:
            raise HiggsError(f"{path} and {places[both].path} both hold the tensor {both}. Keep one of the two files.")
        places.update(found)
    return TensorFile(places, metadata)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of `folder` that make up its weights: named by an index, or found; empty where none are.

    Raises HiggsError naming a shard that should be there and is not.
    """
    present = {path.name: path for path in sorted(folder.glob("*.safetensors"))}
    single = present.get("model.safetensors")
    if (folder / INDEX).is_file():
        named = sorted(set(index_map(folder).values()))
        missing = [name for name in named if name not in present]
        if not missing:
            return [present[name] for name in named]
        # An index that names nothing of what is here was left behind by another revision of the repository.
        if single is None or len(missing) < len(named):
            raise HiggsError(f"{folder / missing[0]} is missing, although {INDEX} lists it. {_HALF}")
    if single is not None:
        return [single]
    for name in present:
        shard = _SHARD.fullmatch(name)
        if shard is None:
            continue
        for number in range(1, int(shard[3]) + 1):
            wanted = f"{shard[1]}-{number:05d}-of-{shard[3]}.safetensors"
            if wanted not in present:
                raise HiggsError(f"{folder / wanted} is missing: {name} is one of {int(shard[3])} files. {_HALF}")
    return list(present.values())


def open_folder(folder: Path) -> TensorFile:
    """The safetensors of `folder` as one collection, held against its index where there is one. Empty where none are.

    Raises HiggsError as `open_tensors` and `weight_files` do, and for a tensor that the index names and no shard has.
    """
    paths = weight_files(folder)
    tensors = open_tensors(paths)
    if (folder / INDEX).is_file():
        claims = index_map(folder)
        if {path.name for path in paths} == set(claims.values()):
            lost = next((name for name in claims if name not in tensors.shapes), None)
            if lost is not None:
                raise HiggsError(
                    f"{folder / claims[lost]} does not contain the tensor {lost}, although {INDEX} says so. "
                    "The two belong to different revisions: download the folder again."
                )
    return tensors


def index_map(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, as the index of `folder` says. Raises HiggsError where it cannot be read."""
    path = folder / INDEX
    claims = read_json(path).get("weight_map")
    if not isinstance(claims, dict) or not all(is_name(name) for pair in claims.items() for name in pair):
        raise HiggsError(f"{path}: weight_map does not name a file for every tensor. Download it again.")
    return claims


def is_name(name: object) -> bool:
    """Whether a tensor, or a file of tensors, may be called so."""
    return isinstance(name, str) and len(name) <= MOST_NAME and name.isprintable()


def _safetensors(path: Path) -> tuple[dict[str, Place], dict[str, str]]:
    """(tensors, metadata)."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if not 2 <= length <= size - 8:
                refuse_pointer(path, length.to_bytes(8, "little") + file.read(64))
                raise HiggsError(f"{path} is not a safetensors file, or its beginning is damaged. Download it again.")
            if length > MOST_HEADER_BYTES:
                raise HiggsError(f"{path} has a header of {length:,} bytes. At most {MOST_HEADER_BYTES:,} are read.")
            header = parse_object(f"The header of {path}", file.read(length))
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Download it again.") from error
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HiggsError(f"The header of {path} holds metadata that are not text. Download it again.")
    if len(header) > MOST_TENSORS:
        raise HiggsError(f"{path} holds {len(header):,} tensors. At most {MOST_TENSORS:,} are read from one file.")
    places = {name: _place(path, name, entry, 8 + length) for name, entry in header.items()}
    end = max((place.offset + place.nbytes for place in places.values()), default=0)
    if end > size:
        raise HiggsError(f"{path} is cut short: {size:,} bytes of {end:,}. {_HALF}")
    refuse_shared(path, places, size)
    return places, metadata


def refuse_shared(path: Path, places: Mapping[str, Place], size: int) -> None:
    """Raises HiggsError where tensors share bytes of a file: it would take many times its size in memory."""
    if sum(place.nbytes for place in places.values()) > size:
        raise HiggsError(f"The header of {path} is damaged: its tensors are larger than the file. Download it again.")


def _place(path: Path, name: str, entry: object, start: int) -> Place:
    told = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (told.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not is_name(name) or not is_shape(shape) or not is_shape(offsets) or len(offsets) != 2:
        raise HiggsError(f"The header of {path} is damaged at the tensor {shown_name(name)}. Download the file again.")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise HiggsError(f"{path}: {name} is stored as {shown(dtype)}, which is not supported. Use the bf16 files.")
    begin, end = offsets
    place = Place(path, tuple(shape), _DTYPES[dtype], start + begin)
    if end - begin != place.nbytes:
        raise HiggsError(f"{path}: the header gives {name} the wrong size. Download the file again.")
    return place


def is_shape(sizes: object) -> TypeGuard[Sequence[int]]:
    """Whether these are sizes of a tensor, or offsets in a file: a few whole numbers, none negative or beyond 2**63."""
    return (
        isinstance(sizes, (list, tuple))
        and len(sizes) <= MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 63 for size in sizes)
    )


def _pickled(path: Path) -> dict[str, Place]:
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
    is_table = isinstance(state, dict) and len(state) <= MOST_TENSORS
    if not is_table or not all(is_name(name) and isinstance(value, torch.Tensor) for name, value in state.items()):
        raise HiggsError(f"{path} is not a plain table of tensors. Use the file from the model's own repository.")
    for name, value in state.items():
        is_plain = value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized
        if not is_plain or value.nbytes > value.untyped_storage().nbytes():
            raise HiggsError(f"{path}: {name} is not a plain tensor. Use the file from the model's own repository.")
    places = {name: Place(path, tuple(value.shape), value.dtype, 0, value) for name, value in state.items()}
    refuse_shared(path, places, path.stat().st_size)
    return places
