"""Write a checkpoint in 8 or 4 bits: about half or a third of the size, with the same codes as quantising on load."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import torch

from ..checkpoint.load import Checkpoint, inspect, require_quantizable, require_whole
from ..checkpoint.quantised_file import LAYOUTS, MARKER
from ..checkpoint.talker_layout import V3_CODEC
from ..checkpoint.tensor_file import INDEX, Entry, write_tensors
from ..core.errors import HiggsError
from ..talker.quantize import quantize_int4, row_int8
from ..talker.weight import FORMATS, is_layer_matrix
from .new_folder import new_folder

WEIGHTS = "model.safetensors"


def quantize_folder(folder: Path, out: Path, weights: str) -> Path:
    """Write the checkpoint in `folder` to `out`, with its layers' matrices in the format `weights` ("int8" or "int4").

    int8 is ComfyUI's int8_tensorwise with a scale per row. Everything else is copied, except tensors that speech does
    not use. One tensor is in memory at a time. Raises HiggsError if the folder cannot be quantised, if `out` is inside
    it, and like `new_folder`.
    """
    checkpoint = inspect(folder)
    require_whole(checkpoint)
    if not checkpoint.folder.is_dir():
        raise HiggsError(f"{checkpoint.folder} is not a folder. Choose the folder of the published model.")
    if checkpoint.talker.weights:
        raise HiggsError(f"{folder} already contains {checkpoint.talker.weights} weights. Choose the published model.")
    require_quantizable(checkpoint, weights)
    if checkpoint.folder.resolve() in out.resolve().parents:
        raise HiggsError(f"{out} is inside {folder}. Choose a folder outside it.")
    with new_folder(out) as partial:
        write_tensors(partial / WEIGHTS, _entries(checkpoint, weights))
        for path in checkpoint.folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                _copy_folder(path, partial / path.name)
            elif path.is_file() and path.suffix != ".safetensors" and path.name != INDEX:
                shutil.copy2(path, partial / path.name)
    return out


def _copy_folder(path: Path, target: Path) -> None:
    try:
        shutil.copytree(path, target)
    except shutil.Error as error:  # a list of (from, to, why)
        raise OSError(error.args[0][0][2]) from error


def _entries(checkpoint: Checkpoint, weights: str) -> dict[str, Entry]:
    """Return the entries of the new file, with layers in the old order."""
    file, plan, entries = checkpoint.talker, checkpoint.plan, {}
    mark = torch.tensor(list(json.dumps({"format": LAYOUTS[weights]}).encode()), dtype=torch.uint8)

    @functools.lru_cache(maxsize=1)
    def rows_of(key: str) -> tuple[torch.Tensor, torch.Tensor]:
        return row_int8(file.get(key))

    for name in plan.parts:
        matrix = is_layer_matrix(name, plan.shape(name))
        for key in plan.stored(name):
            if not matrix:
                entries[key] = Entry(file.dtypes[key], file.shapes[key], lambda key=key: file.get(key))
                continue
            rows, width = file.shapes[key]
            if weights == "int8":
                entries[key] = Entry(torch.int8, (rows, width), lambda key=key: rows_of(key)[0])
                entries[key + "_scale"] = Entry(torch.float32, (rows, 1), lambda key=key: rows_of(key)[1][:, None])
            else:
                size = FORMATS[weights].row_bytes(width)
                entries[key] = Entry(torch.uint8, (rows, size), lambda key=key, size=size: _blocks(file.get(key), size))
            entries[key.removesuffix("weight") + MARKER] = Entry(torch.uint8, tuple(mark.shape), lambda: mark)
    for key in file.shapes:
        if key.startswith(V3_CODEC) and key not in entries:
            entries[key] = Entry(file.dtypes[key], file.shapes[key], lambda key=key: file.get(key))
    return entries


def _blocks(matrix: torch.Tensor, size: int) -> torch.Tensor:
    out = torch.empty(len(matrix), size, dtype=torch.uint8)
    quantize_int4(matrix, out)
    return out
