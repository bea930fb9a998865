"""Weights that a file holds in 8 or 4 bits: ComfyUI's int8_tensorwise with a scale a row, and int4 in our own blocks.

As in ComfyUI, `X.comfy_quant` beside `X.weight` is JSON that names the format. Knows no layout and no model.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..talker.quantize import BLOCK, INT4_BLOCK, dequantize_int4, pack_int8
from .tensor_file import TensorFile

MARKER = "comfy_quant"
FORMATS = {"int8": "int8_tensorwise", "int4": "higgs_tts_int4"}  # what the marker says
_DTYPES = {"int8": torch.int8, "int4": torch.uint8}


class QuantisedFile(TensorFile):
    """A collection some of whose tensors are quantised. `shapes` are those of the matrices; scales are not listed."""

    def __init__(self, raw: TensorFile, weights: str, names: list[str]) -> None:
        super().__init__(raw.places)
        self.weights, self._raw, self._quantised = weights, raw, frozenset(names)
        for name in names:
            for beside in (name.removesuffix("weight") + MARKER, name + "_scale"):
                self.shapes.pop(beside, None)
                self.dtypes.pop(beside, None)
            if weights == "int4":
                rows, size = raw.shapes[name]
                self.shapes[name] = (rows, size // INT4_BLOCK * BLOCK)

    def is_quantised(self, name: str) -> bool:
        return name in self._quantised

    def span(self, name: str) -> tuple[Path, int] | None:
        return None if self.is_quantised(name) else super().span(name)

    def get(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tensor on `device`; a quantised one multiplied out, in fp32."""
        stored = super().get(name, device)
        if not self.is_quantised(name):
            return stored
        whole = torch.empty(self.shapes[name], device=device)
        if self.weights == "int4":
            dequantize_int4(stored, whole, torch.empty(stored.numel(), dtype=torch.uint8, device=device))
            return whole
        return torch.mul(stored, self._scale_of(name, len(stored), device)[:, None], out=whole)

    def _scale_of(self, name: str, rows: int, device: torch.device | str) -> torch.Tensor:
        """Of each row of an int8 matrix, fp32."""
        return self._raw.get(name + "_scale", device).float().reshape(-1).expand(rows)

    def put(self, name: str, out: torch.Tensor) -> None:
        """A quantised tensor as talker/weight.py stores it -> out."""
        stored = self._raw.get(name, out.device)
        if self.weights == "int4":
            out.copy_(stored)
            return
        pack_int8(stored, self._scale_of(name, len(stored), out.device), out)


def quantised(raw: TensorFile) -> TensorFile:
    """`raw`, or what reads its quantised tensors where all of them are of one format that we know."""
    markers = [name for name in raw.shapes if name.rpartition(".")[2] == MARKER]
    said = [_marker(raw.get(name)) for name in markers]
    names = [name.removesuffix(MARKER) + "weight" for name in markers]
    for weights, format in FORMATS.items():
        if markers and all(one == {"format": format} for one in said) and _whole(raw, weights, names):
            return QuantisedFile(raw, weights, names)
    return raw


def _marker(tensor: torch.Tensor) -> object:
    try:
        return json.loads(bytes(tensor.flatten().tolist()))
    except ValueError:
        return None


def _whole(raw: TensorFile, weights: str, names: list[str]) -> bool:
    """Whether every such tensor is a matrix of the format's dtype and has its scales."""
    for name in names:
        shape = raw.shapes.get(name, ())
        if len(shape) != 2 or raw.dtypes[name] != _DTYPES[weights]:
            return False
        if weights == "int4" and shape[1] % INT4_BLOCK:
            return False
        if weights == "int8" and raw.shapes.get(name + "_scale") not in ((), (1,), (shape[0],), (shape[0], 1)):
            return False
    return True
