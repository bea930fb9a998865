"""Files with 8-bit or 4-bit weights: ComfyUI's layouts, and int4 in our own blocks.

As in ComfyUI 0.33 (comfy/ops.py, comfy/quant_ops.py, comfy/utils.py), the format is named in one of three ways: by JSON
in `X.comfy_quant` beside `X.weight`; by the file's metadata, for X in `_quantization_metadata`; or by a tensor
`scaled_fp8`, if all weights are fp8 with a `scale_weight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.config import MOST_NAME
from ..core.errors import HiggsError, shown_name
from ..files.json_file import parse_object
from ..talker.quantize import BLOCK, INT4_BLOCK, dequantize_int4, pack_int8
from ..talker.weight import FORMATS
from .tensor_file import TensorFile

MARKER, METADATA, LEGACY = "comfy_quant", "_quantization_metadata", "scaled_fp8"
LAYOUTS = {"int8": "int8_tensorwise", "int4": "higgs_tts_int4"}  # layouts that we write
_FP8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
_SCALES, _UNUSED = ("weight_scale", "scale_weight"), ("input_scale", "scale_input")
_MOST_MARKER = 1 << 16  # bytes; ours has 30
_HARMLESS = {"format", "full_precision_matrix_mult"}  # a layer's settings that do not affect its weights


@dataclass(frozen=True)
class Packed:
    file: TensorFile  # holds the tensor as stored
    name: str
    shape: tuple[int, ...]  # dequantised
    layout: str  # in the file
    weights: str  # closest format of talker/weight.py with at least as many bits
    bits: float  # per weight, including scales
    beside: tuple[str, ...] = ()  # other tensors of the file that belong only to this tensor

    def dense(self, device: torch.device | str) -> torch.Tensor:
        """Return the dequantised tensor in fp32."""
        raise NotImplementedError

    def put(self, out: torch.Tensor) -> bool:
        """Store the tensor in `out` in the format `weights`. Returns False if that would round it again."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scaled(Packed):
    """Codes in int8 or fp8 with one scale per tensor or per row: w = code * scale."""

    scale: str = ""

    def dense(self, device: torch.device | str) -> torch.Tensor:
        codes = self.file.get(self.name, device).float()
        return codes.mul_(self._scale_of(len(codes), device)[:, None])

    def put(self, out: torch.Tensor) -> bool:
        codes = self.file.get(self.name, out.device)
        if codes.dtype == torch.int8:
            pack_int8(codes, self._scale_of(len(codes), out.device), out)
        return codes.dtype == torch.int8

    def _scale_of(self, rows: int, device: torch.device | str) -> torch.Tensor:
        """Return the scale of each row in fp32."""
        return self.file.get(self.scale, device).float().reshape(-1).expand(rows)


class OurInt4(Packed):
    """int4 in the blocks of talker/quantize.py."""

    def dense(self, device: torch.device | str) -> torch.Tensor:
        stored = self.file.get(self.name, device)
        whole = torch.empty(self.shape, device=device)
        dequantize_int4(stored, whole, torch.empty(stored.numel(), dtype=torch.uint8, device=device))
        return whole

    def put(self, out: torch.Tensor) -> bool:
        out.copy_(self.file.get(self.name, out.device))
        return True


class QuantisedFile(TensorFile):
    """Collection with quantised tensors. `shapes` has the shapes of the dequantised matrices, without scales.

    refused: name -> reason, for quantised tensors that cannot be read.
    """

    def __init__(self, raw: TensorFile, packed: Mapping[str, Packed], refused: Mapping[str, str]) -> None:
        super().__init__(raw.places, raw.metadata)
        self.packed, self.refused = packed, refused
        # The layers' format; with several, the one with the most bits.
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
        """Return the tensor on `device`. A quantised tensor is dequantised to fp32."""
        return self.packed[name].dense(device) if name in self.packed else super().get(name, device)

    def put(self, name: str, weights: str, out: torch.Tensor) -> bool:
        """Store a tensor in `out` if the file has it in the format `weights`. Returns False otherwise."""
        one = self.packed.get(name)
        return one is not None and one.weights == weights and one.put(out)


def quantised(raw: TensorFile) -> TensorFile:
    """Return `raw`, or a QuantisedFile over it if it has quantised tensors."""
    packed: dict[str, Packed] = {}
    refused: dict[str, str] = {}
    for module, settings in _marked(raw).items():
        name = f"{module}.weight"
        matrix = _packed(raw, name, settings)
        if isinstance(matrix, str):
            refused[name] = matrix
        else:
            packed[name] = matrix
    return QuantisedFile(raw, packed, refused) if packed or refused else raw


def _marked(raw: TensorFile) -> dict[str, object]:
    """Return module -> quantisation settings of its weight."""
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
        # These names still have a wrapper's prefix; the tensors' names do not.
        words = name[:MOST_NAME].split(".")
        tails = (".".join(words[start:]) for start in range(len(words)))
        module = next((tail for tail in tails if f"{tail}.weight" in raw.shapes), name)
        marked.setdefault(module, settings)
    return marked


def _settings(text: str | bytes) -> dict:
    """Return parsed JSON from the file, or empty if it is damaged."""
    try:
        return parse_object(METADATA, text)
    except HiggsError:
        return {}


def _packed(raw: TensorFile, name: str, settings: object) -> Packed | str:
    """Return the reader of a marked tensor, or the reason why there is none."""
    module = name.removesuffix(".weight")
    format = settings.get("format") if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not isinstance(format, str):
        return "its format is not named"
    odd = [key for key, value in settings.items() if value and key not in _HARMLESS]
    if odd:
        return f"{shown_name(format)} with {shown_name(odd[0])} is not supported"
    names = (f"{module}.{kind}" for kind in (MARKER, *_SCALES, *_UNUSED))
    beside = tuple(name for name in names if name in raw.shapes)
    shape, dtype = raw.shapes.get(name, ()), raw.dtypes.get(name)
    if format == LAYOUTS["int4"]:
        is_whole = len(shape) == 2 and dtype == torch.uint8 and shape[1] % INT4_BLOCK == 0
        if not is_whole:
            return f"its shape is not {format}'s"
        whole = (shape[0], shape[1] // INT4_BLOCK * BLOCK)
        return OurInt4(raw, name, whole, format, "int4", 8 * INT4_BLOCK / BLOCK, beside)
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
    bits = 8 + 32 * math.prod(raw.shapes[scale]) / math.prod(shape)
    return Scaled(raw, name, shape, format, "int8", bits, beside, scale)
