"""audio.cpp's GGUF files as checkpoints: tensors, some in ggml's blocks, and embedded files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..files.gguf_header import SUFFIX, GgufTensor, is_gguf, read_gguf
from ..talker.quantize import pack_q8_0
from .places import Place, refuse_shared
from .quantised_file import Packed, QuantisedFile
from .tensor_file import TensorFile, weight_files

_PLAIN = {0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 30: torch.bfloat16}


@dataclass(frozen=True)
class BlockType:
    """One of ggml's quantised types, as in ggml-common.h."""

    name: str
    block: int  # weights per block
    size: int  # bytes per block
    weights: str  # closest format of talker/weight.py with at least as many bits


_BLOCKS = {
    2: BlockType("Q4_0", 32, 18, "int4"),
    3: BlockType("Q4_1", 32, 20, "int4"),
    6: BlockType("Q5_0", 32, 22, "int8"),
    7: BlockType("Q5_1", 32, 24, "int8"),
    8: BlockType("Q8_0", 32, 34, "q8_0"),
    10: BlockType("Q2_K", 256, 84, "int4"),
    11: BlockType("Q3_K", 256, 110, "int4"),
    12: BlockType("Q4_K", 256, 144, "int4"),
    13: BlockType("Q5_K", 256, 176, "int8"),
    14: BlockType("Q6_K", 256, 210, "int8"),
}


@dataclass(frozen=True)
class Blocks(Packed):
    """A tensor in ggml's blocks, row after row. `file` holds it as bytes."""

    size: int = 0  # bytes per block

    def dense(self, device: torch.device | str) -> torch.Tensor:
        stored = self.file.get(self.name, device)
        multiply_out = {"Q8_0": q8_0, "Q4_K": q4_k}.get(self.layout)
        if multiply_out is None:
            # gguf's numpy code, on the host: for types that audio.cpp's own Higgs files do not have
            types, dequantize = (
                import_optional("gguf", "GGMLQuantizationType"),
                import_optional("gguf.quants", "dequantize"),
            )
            return torch.from_numpy(dequantize(stored.cpu().numpy(), types[self.layout])).view(self.shape).to(device)
        return multiply_out(stored.view(-1, self.size)).view(self.shape)

    def put(self, out: torch.Tensor) -> bool:
        if self.layout == "Q8_0":
            pack_q8_0(self.file.get(self.name, out.device).unflatten(1, (-1, self.size)), out)
        return self.layout == "Q8_0"


def q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """Dequantise Q8_0: blocks [n, 34] uint8, an fp16 scale and 32 codes each -> weights [n, 32] fp32."""
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks[:, :2]))


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """Dequantise Q4_K: blocks [n, 144] uint8 -> weights [n, 256] fp32.

    A block holds two fp16 factors, for the scales and the minima; eight 6-bit scales and eight 6-bit minima; and 256
    4-bit codes. w = scale * code - minimum.
    """
    low, high, both = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scales = torch.cat([low & 63, both & 15 | low >> 6 << 4], 1)
    minima = torch.cat([high & 63, both >> 4 | high >> 6 << 4], 1)
    codes = blocks[:, 16:].unflatten(1, (4, 1, 32))
    codes = torch.cat([codes & 15, codes >> 4], 2).view(-1, 8, 32).float()
    codes *= (_half(blocks[:, :2]) * scales)[:, :, None]
    codes -= (_half(blocks[:, 2:4]) * minima)[:, :, None]
    return codes.flatten(1)


def _half(data: torch.Tensor) -> torch.Tensor:
    """Convert bytes [n, 2] of fp16 -> [n, 1] fp32."""
    return data.contiguous().view(torch.float16).float()


def checkpoint_place(folder: Path) -> Path:
    """Return `folder`, or the GGUF file in it if it has no safetensors weights. A GGUF file is returned unchanged.

    Raises HiggsError if the folder contains several GGUF files.
    """
    if not folder.is_dir() or weight_files(folder):
        return folder
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise HiggsError(
            f"{folder} contains several models: {', '.join(path.name for path in files)}. Choose one of them."
        )
    return files[0] if files else folder


def side_file(place: Path, name: str) -> Path:
    """Return the path of a checkpoint's file: in its folder, inside its GGUF file, or beside the GGUF file."""
    if is_gguf(place) and read_gguf(place).embedded(name) is None:
        return place.with_name(name)
    return place / name


def has_file(path: Path) -> bool:
    """True if the file exists, on disk or inside a GGUF file."""
    return path.is_file() or (is_gguf(path.parent) and read_gguf(path.parent).embedded(path.name) is not None)


def open_gguf(path: Path) -> TensorFile:
    """Open the tensors of a GGUF file. Raises HiggsError if it is damaged or has unknown types."""
    header, size = read_gguf(path), path.stat().st_size
    places: dict[str, Place] = {}
    blocks: dict[str, GgufTensor] = {}
    for name, tensor in header.tensors.items():
        if tensor.type in _PLAIN:
            place = Place(path, tensor.shape, _PLAIN[tensor.type], tensor.offset)
        elif tensor.type in _BLOCKS and tensor.shape and tensor.shape[-1] % _BLOCKS[tensor.type].block == 0:
            kind = _BLOCKS[tensor.type]
            row = tensor.shape[-1] // kind.block * kind.size
            place = Place(path, (math.prod(tensor.shape[:-1]), row), torch.uint8, tensor.offset)
            blocks[name] = tensor
        else:
            raise HiggsError(
                f"{path}: {name} has the ggml type {tensor.type}, which is not supported. Use the Q8_0 file."
            )
        if place.offset + place.nbytes > size:
            raise HiggsError(f"{path} is cut short: {name} lies beyond its end. Download it again.")
        places[name] = place
    refuse_shared(path, places, size)
    raw = TensorFile(places)
    packed = {}
    for name, tensor in blocks.items():
        kind = _BLOCKS[tensor.type]
        bits = 8 * kind.size / kind.block
        packed[name] = Blocks(raw, name, tensor.shape, kind.name, kind.weights, bits, size=kind.size)
    return QuantisedFile(raw, packed, {}) if packed else raw
