"""Tensors by name across one or more files: names, shapes and bytes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from ..core.errors import HiggsError
from ..files.json_file import read_json
from ..files.whole_file import replacing
from .places import DTYPES, HALF, Place, is_name, places_in_pickle, places_in_safetensors

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


class TensorFile:
    """Collection of named tensors in one or more files. Nothing is read before `get`."""

    weights = ""  # closest format to its quantised layers, see quantised_file.py
    refused: Mapping[str, str] = MappingProxyType({})

    def __init__(self, places: dict[str, Place], metadata: Mapping[str, str] = MappingProxyType({})):
        self.places, self.metadata = places, metadata
        self.shapes: dict[str, tuple[int, ...]] = {name: place.shape for name, place in places.items()}
        self.dtypes: dict[str, torch.dtype] = {name: place.dtype for name, place in places.items()}

    def is_quantised(self, name: str) -> bool:
        return False

    def stored_as(self, name: str) -> str:
        """Return the storage format of a tensor, for messages."""
        return str(self.dtypes[name]).removeprefix("torch.")

    def file_of(self, name: str) -> str:
        """Return the path of the file with tensor `name`, for messages."""
        return str(self.places[name].path)

    def get(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the tensor on `device`, in the file's dtype. On the CPU the file backs it: do not write to it."""
        return self.places[name].map().to(device)

    def span(self, name: str) -> tuple[Path, int] | None:
        """Return (file, offset of the first byte) of a contiguous tensor, or None if only `get` can read it."""
        place = self.places[name]
        return (place.path, place.offset) if place.tensor is None else None

    def under(self, prefix: str) -> TensorFile:
        """Return the tensors whose names start with `prefix`, without the prefix."""
        return TensorFile({n[len(prefix) :]: p for n, p in self.places.items() if n.startswith(prefix)})

    def renamed(self, names: Mapping[str, str]) -> TensorFile:
        """Return the same tensors, renamed by `names`. Other names stay."""
        return TensorFile({names.get(name, name): place for name, place in self.places.items()}, self.metadata)


@dataclass(frozen=True)
class Entry:
    """Tensor to write, with known dtype and shape. Its values are made just before writing."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]


def write_tensors(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write a safetensors file with one tensor in memory at a time. It is renamed into place when complete."""
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(header_of({name: (entry.dtype, entry.shape) for name, entry in entries.items()})[0])
        for name, entry in entries.items():
            tensor = entry.make()
            assert tensor.dtype == entry.dtype and tuple(tensor.shape) == entry.shape, name
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)  # tofile hides a full disk


def header_of(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[bytes, int]:
    """Return a safetensors file's bytes before its tensors, and the tensors' size, from their dtypes and shapes."""
    names, header, end = {dtype: name for name, dtype in DTYPES.items()}, {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def open_tensors(paths: Sequence[Path | str]) -> TensorFile:
    """Read the headers of `paths` (.safetensors, .pth, .pt, .bin) as one collection.

    Raises HiggsError if a file is missing, truncated, not of the type its name says, or repeats another file's tensor.
    """
    places: dict[str, Place] = {}
    metadata: dict[str, str] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise HiggsError(f"{path} is missing. {HALF}")
        own_places, own_metadata = (
            places_in_safetensors(path) if path.suffix.lower() == ".safetensors" else (places_in_pickle(path), {})
        )
        metadata.update(own_metadata)
        both = next((name for name in own_places if name in places), None)
        if both is not None:
            raise HiggsError(
                f"{path} and {places[both].path} both contain the tensor {both}. Keep only one of the two files."
            )
        places.update(own_places)
    return TensorFile(places, metadata)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files with the weights of `folder`, from its index or by search. Empty if there are none.

    Raises HiggsError naming a missing shard.
    """
    present = {path.name: path for path in sorted(folder.glob("[!.]*.safetensors"))}  # no ._ files of macOS
    single = present.get("model.safetensors")
    if (folder / INDEX).is_file():
        named = sorted(set(index_map(folder).values()))
        if not (missing := [name for name in named if name not in present]):
            return [present[name] for name in named]
        # An index that matches no file here is a leftover of another revision of the repository.
        if single is None or len(missing) < len(named):
            raise HiggsError(f"{folder / missing[0]} is missing, although {INDEX} lists it. {HALF}")
    if single is not None:
        return [single]
    for name in present:
        shard = _SHARD.fullmatch(name)
        if shard is None:
            continue
        for number in range(1, int(shard[3]) + 1):
            wanted = f"{shard[1]}-{number:05d}-of-{shard[3]}.safetensors"
            if wanted not in present:
                raise HiggsError(f"{folder / wanted} is missing: {name} is one of {int(shard[3])} files. {HALF}")
    return list(present.values())


def open_folder(folder: Path) -> TensorFile:
    """Open the safetensors files of `folder` as one collection, checked against its index. Empty if there are none.

    Raises HiggsError like `open_tensors` and `weight_files`, or if a tensor in the index is in no shard.
    """
    paths = weight_files(folder)
    tensors = open_tensors(paths)
    if (folder / INDEX).is_file():
        claims = index_map(folder)
        if {path.name for path in paths} == set(claims.values()):
            lost = next((name for name in claims if name not in tensors.shapes), None)
            if lost is not None:
                raise HiggsError(
                    f"{folder / claims[lost]} does not contain the tensor {lost}, although {INDEX} says so. The two "
                    "come from different versions: download the folder again."
                )
    return tensors


def index_map(folder: Path) -> dict[str, str]:
    """Return tensor name -> file name from the index of `folder`. Raises HiggsError if it cannot be read."""
    path = folder / INDEX
    claims = read_json(path).get("weight_map")
    if not isinstance(claims, dict) or not all(is_name(name) for pair in claims.items() for name in pair):
        raise HiggsError(f"{path}: weight_map does not name a file for every tensor. Download it again.")
    return claims
