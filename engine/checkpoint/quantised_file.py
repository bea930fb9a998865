"""Weights that a file holds in 8 or 4 bits: ComfyUI's int8_tensorwise with a scale a row, and int4 in our own blocks.

As in ComfyUI, `X.comfy_quant` beside `X.weight` is JSON that names the format. Knows no layout and no model.
"""

from __future__ import annotations

import json

import torch

from ..talker.quantize import BLOCK, INT4_BLOCK, pack_int8
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

    def put(self, name: str, out: torch.Tensor) -> None:
        """A quantised tensor as talker/weight.py stores it -> out."""
        stored = self._raw.get(name, out.device)
        if self.weights == "int4":
            out.copy_(stored)
            return
        scale = self._raw.get(name + "_scale", out.device).float().reshape(-1)
        pack_int8(stored, scale.expand(len(stored)), out)


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
