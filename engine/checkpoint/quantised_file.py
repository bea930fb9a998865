"""Weights that a file holds in 8 or 4 bits: ComfyUI's layouts, and int4 in our own blocks.

As in ComfyUI 0.33 (comfy/ops.py, comfy/quant_ops.py, comfy/utils.py), `X.comfy_quant` beside `X.weight` is JSON that
names the format; or the file's metadata names it for X in `_quantization_metadata`; or a tensor `scaled_fp8` says that
all are fp8 with a `scale_weight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..core.config import MOST_NAME
from ..core.errors import HiggsError, shown_name
from ..files.json_file import parse_object
from ..talker.quantize import BLOCK, INT4_BLOCK, dequantize_int4, pack_int8
from ..talker.weight import FORMATS
from .tensor_file import TensorFile

MARKER, METADATA, LEGACY = "comfy_quant", "_quantization_metadata", "scaled_fp8"
LAYOUTS = {"int8": "int8_tensorwise", "int4": "higgs_tts_int4"}  # what we write
_FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
_SCALES, _UNUSED = ("weight_scale", "scale_weight"), ("input_scale", "scale_input")
_MOST_MARKER = 1 << 16  # bytes; ours has 30
_HARMLESS = {"format", "full_precision_matrix_mult"}  # settings of a layer that say nothing of its weights


class Packed(Protocol):
    """A tensor in few bits."""

    @property
    def layout(self) -> str:
        """As its file calls it."""
        ...

    @property
    def weights(self) -> str:
        """The format of talker/weight.py that is next to it and has no fewer bits."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def beside(self) -> tuple[str, ...]:
        """Tensors of the file that belong to it and to nothing else."""
        ...

    @property
    def bits(self) -> float:
        """Of a weight, scales included."""
        ...

    def dense(self, device: torch.device | str) -> torch.Tensor:
        """Multiplied out, in fp32."""
        ...

    def put(self, out: torch.Tensor) -> bool:
        """The same as the format `weights` stores it -> out, or False where that would round it again."""
        ...


@dataclass(frozen=True)
class Scaled:
    """Codes in int8 or fp8, and a scale for all or for each row: w = code * scale."""

    layout: str
    file: TensorFile
    name: str
    scale: str
    beside: tuple[str, ...]
    weights: str = "int8"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.shapes[self.name]

    @property
    def bits(self) -> float:
        return 8 + 32 * math.prod(self.file.shapes[self.scale]) / math.prod(self.shape)

    def dense(self, device: torch.device | str) -> torch.Tensor:
        codes = self.file.get(self.name, device).float()
        return codes.mul_(self._scale_of(len(codes), device)[:, None])

    def put(self, out: torch.Tensor) -> bool:
        codes = self.file.get(self.name, out.device)
        if codes.dtype == torch.int8:
            pack_int8(codes, self._scale_of(len(codes), out.device), out)
        return codes.dtype == torch.int8

    def _scale_of(self, rows: int, device: torch.device | str) -> torch.Tensor:
        """Of each row, fp32."""
        return self.file.get(self.scale, device).float().reshape(-1).expand(rows)


@dataclass(frozen=True)
class OurInt4:
    """The blocks of talker/quantize.py."""

    file: TensorFile
    name: str
    beside: tuple[str, ...]
    layout: str = LAYOUTS["int4"]
    weights: str = "int4"

    @property
    def shape(self) -> tuple[int, ...]:
        rows, size = self.file.shapes[self.name]
        return rows, size // INT4_BLOCK * BLOCK

    @property
    def bits(self) -> float:
        return 8 * INT4_BLOCK / BLOCK

    def dense(self, device: torch.device | str) -> torch.Tensor:
        stored = self.file.get(self.name, device)
        whole = torch.empty(self.shape, device=device)
        dequantize_int4(stored, whole, torch.empty(stored.numel(), dtype=torch.uint8, device=device))
        return whole

    def put(self, out: torch.Tensor) -> bool:
        out.copy_(self.file.get(self.name, out.device))
        return True


class QuantisedFile(TensorFile):
    """A collection some of whose tensors are quantised. `shapes` are those of the matrices; scales are not listed.

    refused: names of quantised tensors that cannot be read -> why.
    """

    def __init__(self, raw: TensorFile, packed: Mapping[str, Packed], refused: Mapping[str, str]) -> None:
        super().__init__(raw.places, raw.metadata)
        self.packed, self.refused = packed, refused
        # The layers decide, and of several formats the one with the most bits.
        layers = {one.weights for name, one in packed.items() if "layers." in name}
        self.weights = max(layers, key=lambda name: FORMATS[name].bits, default="")
        self.shapes.pop(LEGACY, None)
        for name, one in packed.items():
            for beside in (*one.beside, name):
                self.shapes.pop(beside, None)
            self.shapes[name] = one.shape
        for name in self.dtypes.keys() - self.shapes.keys():
            del self.dtypes[name]

    def is_quantised(self, name: str) -> bool:
        return name in self.packed

    def stored_as(self, name: str) -> str:
        return self.packed[name].layout if name in self.packed else super().stored_as(name)

    def span(self, name: str) -> tuple[Path, int] | None:
        return None if name in self.packed else super().span(name)

    def get(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tensor on `device`; a quantised one multiplied out, in fp32."""
        return self.packed[name].dense(device) if name in self.packed else super().get(name, device)

    def put(self, name: str, weights: str, out: torch.Tensor) -> bool:
        """A tensor that the file holds in the format `weights` -> out, as it is stored there; else False."""
        one = self.packed.get(name)
        return one is not None and one.weights == weights and one.put(out)


def quantised(raw: TensorFile) -> TensorFile:
    """`raw`, or what reads the tensors that are quantised in it."""
    packed: dict[str, Packed] = {}
    refused: dict[str, str] = {}
    for module, settings in _marked(raw).items():
        name = f"{module}.weight"
        found = _packed(raw, name, settings)
        if isinstance(found, str):
            refused[name] = found
        else:
            packed[name] = found
    return QuantisedFile(raw, packed, refused) if packed or refused else raw


def _marked(raw: TensorFile) -> dict[str, object]:
    """Module -> what is said of its weight."""
    marked: dict[str, object] = {}
    layers = _settings(raw.metadata.get(METADATA, "")).get("layers")
    for name in raw.shapes:
        module, _, last = name.rpartition(".")
        if last == MARKER:
            is_text = raw.dtypes[name] == torch.uint8 and math.prod(raw.shapes[name]) <= _MOST_MARKER
            marked[module] = _settings(raw.get(name).numpy().tobytes()) if is_text else {}
        elif last == "scale_weight" and LEGACY in raw.shapes:
            marked[module] = {"format": str(raw.dtypes.get(f"{module}.weight")).removeprefix("torch.")}
    for name, settings in layers.items() if isinstance(layers, dict) else ():
        # A wrapper's prefix has been taken from the tensors' names, not from these.
        words = name[:MOST_NAME].split(".")
        tails = (".".join(words[start:]) for start in range(len(words)))
        module = next((tail for tail in tails if f"{tail}.weight" in raw.shapes), name)
        marked.setdefault(module, settings)
    return marked


def _settings(text: str | bytes) -> dict:
    """Parsed JSON from the file; empty if it is damaged."""
    try:
        return parse_object(METADATA, text)
    except HiggsError:
        return {}


def _packed(raw: TensorFile, name: str, settings: object) -> Packed | str:
    """Reader of a marked tensor, or the reason why there is none."""
    module = name.removesuffix(".weight")
    format = settings.get("format") if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not isinstance(format, str):
        return "its format is not named"
    odd = [key for key, value in settings.items() if value and key not in _HARMLESS]
    if odd:
        return f"{shown_name(format)} with {shown_name(odd[0])} is not supported"
    names = {
        kind: f"{module}.{kind}" for kind in (MARKER, "weight_scale", "scale_weight", "input_scale", "scale_input")
    }
    beside = tuple(key for key in names.values() if key in raw.shapes)
    shape, dtype = raw.shapes.get(name, ()), raw.dtypes.get(name)
    if format == LAYOUTS["int4"]:
        is_whole = len(shape) == 2 and dtype == torch.uint8 and shape[1] % INT4_BLOCK == 0
        return OurInt4(raw, name, beside) if is_whole else f"its shape is not {format}'s"
    wanted = {**_FP8, LAYOUTS["int8"]: torch.int8}.get(format)
    if wanted is None:
        return f"{shown_name(format)} is not supported"
    if len(shape) != 2 or 0 in shape or dtype != wanted:
        return f"it is not a matrix that fits {format}"
    scale = next((key for key in (f"{module}.{kind}" for kind in _SCALES) if key in raw.shapes), "")
    if not scale:
        return f"its scale {module}.{_SCALES[0]} is missing"
    if raw.shapes[scale] not in ((), (1,), (shape[0],), (shape[0], 1)):
        return f"its scale has the shape {list(raw.shapes[scale])}"
    return Scaled(format, raw, name, scale, beside)
