"""Describe, for doctor, how a file's quantised layers load. Reads the matrices of one layer."""

from __future__ import annotations

from collections import Counter

import torch

from ..checkpoint.load import Checkpoint, format_for
from ..checkpoint.quantised_file import Packed, QuantisedFile
from ..talker.weight import FORMATS, Weight, is_layer_matrix, scratch_bytes


def describe_packed(checkpoint: Checkpoint, taken: str) -> str:
    """Describe the file's quantised matrices by layout and bits, and what loading with dtype `taken` makes of them.

    Empty if the file has none.
    """
    file, plan = checkpoint.talker, checkpoint.plan
    if not isinstance(file, QuantisedFile):
        return ""
    counts = Counter((one.layout, round(one.bits, 2)) for one in file.packed.values())
    parts = [f"{count} matrices {layout} ({bits:g} bits a weight)" for (layout, bits), count in counts.items()]
    if taken not in FORMATS or FORMATS[taken].quantize is None:
        return f"{', '.join(parts)}; expanded to {taken}"
    taken = format_for(checkpoint, taken)
    names = [name for name in plan.parts if is_layer_matrix(name, plan.shape(name)) and name.startswith("layers.0.")]
    first = [key for name in names for key in plan.stored(name) if file.is_quantised(key)]
    worst = max((_rounding(file.packed[key], taken) for key in first), default=0.0)
    rounded = f"rounded once more to {taken}, which changes layer 0 by {worst:.2%}" if worst else "used unchanged"
    return f"{', '.join(parts)}; {rounded}"


def _rounding(one: Packed, taken: str) -> float:
    """Return the relative L2 error of storing a matrix in that format, 0 if it is kept."""
    format = FORMATS[taken]
    assert format.quantize is not None
    rows, width = one.shape
    data = torch.empty(rows, format.row_bytes(width) // format.dtype.itemsize, dtype=format.dtype)
    if one.weights == taken and one.put(data):
        return 0.0
    whole = one.dense("cpu")
    format.quantize(whole, data)
    scratch = torch.empty(scratch_bytes((rows, width), torch.float32), dtype=torch.uint8)
    return float((Weight(data, scratch).dense(torch.float32) - whole).norm() / whole.norm())
