"""Talkers of random tensors in 8 or 4 bits, for tests of kernels."""

import torch

from ..engine.talker.weight import FORMATS, SCRATCH, is_layer_matrix, scratch_bytes


def quantize(tensors: dict[str, torch.Tensor], weights: str) -> None:
    """Quantise the layers' matrices, and add the scratch for the format. An empty format changes nothing."""
    if not weights:
        return
    format, largest = FORMATS[weights], 0
    for name, matrix in tensors.items():
        if is_layer_matrix(name, matrix.shape):
            largest = max(largest, scratch_bytes(matrix.shape, matrix.dtype))
            shape = len(matrix), format.row_bytes(matrix.shape[1]) // format.dtype.itemsize
            tensors[name] = torch.empty(shape, dtype=format.dtype, device=matrix.device)
            format.quantize(matrix, tensors[name])
    tensors[SCRATCH] = torch.empty(largest, dtype=torch.uint8, device=tensors["norm"].device)
