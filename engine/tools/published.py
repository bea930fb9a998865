"""Checkpoints with the published shapes but without the published weights, for measuring."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..checkpoint.hf_config import read_settings
from ..checkpoint.talker_layout import V3_CODEC, TensorPlan, make_plan
from ..checkpoint.tensor_file import INDEX, header_of, open_tensors
from ..core.codes import BOC
from ..talker import Talker
from ..talker.weight import FORMATS, Weight
from .tiny import write_tiny

PUBLISHED = {
    "v3": {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "v2": {
        "vocab_size": 128256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
SIZES = {"v3": "4B", "v2": "3B"}


def published_config(
    folder: Path, family: str, layers: int | None = None
) -> tuple[TensorPlan, dict[str, torch.Tensor]]:
    """Write a tiny checkpoint with a config.json of published width, and return (plan, codec tensors).

    The caller writes the tensors: a model.safetensors with the plan's and the codec's. `layers`: use fewer layers.
    """
    layout = {"v3": "v3", "v2": "v2-boson"}[family]
    write_tiny(folder, layout)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["text_config"].update(PUBLISHED[family])
    text = config["text_config"]
    text["num_hidden_layers"] = layers or text["num_hidden_layers"]
    if family == "v3":
        config["audio_encoder_config"]["out_dim"] = text["hidden_size"]
    else:
        config["audio_dual_ffn_layers"] = list(range(text["num_hidden_layers"]))
    path.write_text(json.dumps(config), encoding="utf-8")
    small = open_tensors([folder / "model.safetensors"])
    codec = {name: small.get(name).clone() for name in small.shapes if name.startswith(V3_CODEC)}
    (folder / INDEX).unlink()
    plan = make_plan(read_settings(config, path, layout).model, [], tied=family == "v3")
    return plan, codec


def write_hollow(folder: Path, family: str, layers: int | None = None) -> None:
    """Write a sparse checkpoint of the published shapes: a header, and a hole in place of the weights."""
    plan, codec = published_config(folder, family, layers)
    shapes = {name: tuple(tensor.shape) for name, tensor in codec.items()}
    for sources in plan.parts.values():
        shapes |= {stored_name(family, source.name): source.shape for source in sources}
    header, size = header_of({name: (torch.bfloat16, shape) for name, shape in shapes.items()})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)


def stored_name(family: str, name: str) -> str:
    """Return the published file's name of the plan's tensor `name`."""
    return f"body.{name}" if family == "v3" and not name.startswith("tied.") else name


def fill(talker: Talker) -> None:
    """Fill in random weights, scaled so that activations keep their size. Random end codes do not occur."""
    generator = torch.Generator(talker.device).manual_seed(0)
    matrices, ones = [Weight(talker.embed_codes), talker.head_codes], [talker.norm]
    for layer in talker.layers:
        matrices += [layer.qkv, layer.out]
        ones += [] if layer.qk_norm is None else [layer.qk_norm]
        for expert in {id(e): e for e in (layer.text, layer.code)}.values():
            matrices += [expert.gate_up, expert.down]
            ones += [expert.attn_norm, expert.mlp_norm]
    for weight in matrices:
        quantize = FORMATS[weight.format].quantize
        shape = weight.shape
        matrix = weight.data if quantize is None else torch.empty(shape, dtype=talker.dtype, device=talker.device)
        matrix.normal_(0, shape[1] ** -0.5, generator=generator)
        if quantize is not None:
            quantize(matrix, weight.data)
    for norm in ones:
        norm.fill_(1)
    config = talker.config
    talker.head_codes.data.view(config.codebooks, config.code_vocab, -1)[:, BOC:] *= 0.01
