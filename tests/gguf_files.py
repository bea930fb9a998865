"""Write GGUF files like audio.cpp's, from a checkpoint's folder.

Follows audio.cpp f8fb0c1 (2026-07-24), src/framework/assets/tensor_source.cpp (names, side files, exact shapes, which
tensors are quantised), and ggml's docs/gguf.md. Blocks are as `quantize_row_q8_0_ref` of ggml-quants.c makes them, and
Q4_K in its layout there with plain rounding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from ..engine.checkpoint.tensor_file import open_folder

F32, F16, Q8_0, Q4_K, BF16 = 0, 1, 8, 12, 30
_PLAIN = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
_NAMES = {F16: "f16", Q8_0: "q8_0", Q4_K: "q4_k", BF16: "bf16"}
_OF_DTYPE = {dtype: number for number, dtype in _PLAIN.items()}
_BLOCK = {Q8_0: 32, Q4_K: 256}
_LONGEST_NAME = 64  # GGML_MAX_NAME


def write_gguf(
    base: Path, path: Path, kind: int, sidecars: bool = True, types: Mapping[str, int] = MappingProxyType({})
) -> dict[str, torch.Tensor]:
    """Write the checkpoint in `base` as a GGUF file, and return its dequantised tensors in fp32.

    types: by the end of tensors' names, as with audio.cpp's --keep-type.
    """
    stored = open_folder(base)
    header: list[bytes] = []
    blobs, meant, infos, names, ranks, sizes = [], {}, [], [], [], []
    at = 0
    for index, name in enumerate(sorted(stored.shapes)):
        tensor = stored.get(name)
        type = _type_of(name, tensor, kind)
        type = next((number for end, number in types.items() if name.endswith(end)), type)
        data, meant[name] = encoded(tensor, type)
        short = name if len(name) < _LONGEST_NAME else f"_audiocpp.{index}"
        shape = list(tensor.shape) or [1]
        while len(shape) > 1 and shape[0] == 1:  # ggml counts no dimension behind the last above 1
            shape.pop(0)
        infos.append(_string(short) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1]))
        infos[-1] += struct.pack("<IQ", type, at)
        blobs.append(data + bytes(-len(data) % 32))
        at += len(blobs[-1])
        names.append(name)
        ranks.append(tensor.dim())
        sizes += tensor.shape
    header += [_setting("general.architecture", "audiocpp"), _setting("audiocpp.tensor_name_format", "native")]
    header += [_setting("audiocpp.weight_type", _NAMES[kind])]
    if sidecars:
        files = {entry.name: entry.read_bytes() for entry in sorted(base.iterdir()) if entry.suffix != ".safetensors"}
        ends = [sum(map(len, list(files.values())[:count])) for count in range(len(files) + 1)]
        header.append(_setting("audiocpp.embedded_files.names", list(files)))
        header.append(_array("audiocpp.embedded_files.offsets", 10, "Q", ends))
        header.append(_array("audiocpp.embedded_files.data", 0, "B", b"".join(files.values())))
    header.append(_setting("audiocpp.tensor_names", names))
    header.append(_array("audiocpp.tensor_ranks", 5, "i", ranks))
    header.append(_array("audiocpp.tensor_shapes", 11, "q", sizes))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(header)) + b"".join(header) + b"".join(infos)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + bytes(-len(head) % 32) + b"".join(blobs))
    return meant


def _type_of(name: str, tensor: torch.Tensor, kind: int) -> int:
    is_table = "embed" in name.lower() or "codebook" in name.lower()
    if kind not in _BLOCK:
        return kind if tensor.dim() else _OF_DTYPE[tensor.dtype]
    if is_table:
        return F16
    whole = name.endswith(".weight") and tensor.dim() == 2 and tensor.shape[-1] % _BLOCK[kind] == 0
    return kind if whole else _OF_DTYPE[tensor.dtype]


def encoded(tensor: torch.Tensor, type: int) -> tuple[bytes, torch.Tensor]:
    """Return (bytes of a tensor in ggml's type, their values in fp32)."""
    if type in _PLAIN:
        plain = tensor.to(_PLAIN[type]).contiguous()
        return plain.flatten().view(torch.uint8).numpy().tobytes(), plain.float()
    data, meant = {Q8_0: _q8_0, Q4_K: _q4_k}[type](tensor.float().reshape(-1, _BLOCK[type]))
    return data.numpy().tobytes(), meant.view(tensor.shape)


def _q8_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = blocks.abs().amax(1, keepdim=True) / 127
    codes = (blocks / scale.clamp_min(1e-30)).round().to(torch.int8)
    half = scale.half()
    return torch.cat([half.view(torch.uint8), codes.view(torch.uint8)], 1), codes.float() * half.float()


def _q4_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = blocks.view(-1, 8, 32)
    lowest = (-groups.amin(2)).clamp_min(0)
    step = (groups.amax(2) + lowest) / 15
    of_steps, of_lowest = ((each.amax(1, keepdim=True) / 63).half() for each in (step, lowest))
    s, m = (
        (each / of_all.float().clamp_min(1e-30)).round().clamp(0, 63).to(torch.uint8)
        for each, of_all in ((step, of_steps), (lowest, of_lowest))
    )
    scale, minimum = of_steps.float() * s, of_lowest.float() * m
    codes = ((groups + minimum[..., None]) / scale.clamp_min(1e-30)[..., None]).round().clamp(0, 15)
    meant = codes * scale[..., None] - minimum[..., None]
    packed = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4]
    low, high = codes.to(torch.uint8).view(-1, 4, 2, 32).unbind(2)
    halves = [each.view(torch.uint8) for each in (of_steps, of_lowest)]
    return torch.cat([*halves, *packed, (low | high << 4).flatten(1)], 1), meant


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _setting(name: str, value: str | list[str]) -> bytes:
    if isinstance(value, str):
        return _string(name) + struct.pack("<I", 8) + _string(value)
    return _string(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))


def _array(name: str, kind: int, letter: str, values: list[int] | bytes) -> bytes:
    data = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{letter}", *values)
    return _string(name) + struct.pack("<IIQ", 9, kind, len(values)) + data
