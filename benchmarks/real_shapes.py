"""Writes checkpoints of the published shapes with random weights, because no published weights may be fetched here."""

from __future__ import annotations

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from engine.layouts import V3_CODEC, make_plan
from engine.model_config import read_settings
from engine.tiny import write_tiny

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


def write(folder: pathlib.Path, family: str, layers: int | None = None) -> pathlib.Path:
    """A checkpoint of the published width in `folder`; `layers` makes it shorter than published.

    The codec stays the tiny one: what is measured here is the talker.
    """
    layout = {"v3": "v3", "v2": "v2-boson"}[family]
    write_tiny(folder, layout)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = config["text_config"]
    text.update(PUBLISHED[family])
    text["num_hidden_layers"] = layers or text["num_hidden_layers"]
    if family == "v3":
        config["audio_encoder_config"]["out_dim"] = text["hidden_size"]
    else:
        config["audio_dual_ffn_layers"] = list(range(text["num_hidden_layers"]))
    path.write_text(json.dumps(config))
    small = load_file(folder / "model.safetensors")
    tensors = {name: tensor for name, tensor in small.items() if name.startswith(V3_CODEC)}
    plan = make_plan(read_settings(config, path, layout).model, [], tied=family == "v3")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    for sources in plan.parts.values():
        for source in sources:
            noise = torch.randn(source.shape, generator=generator, device=device)
            scale = 1.0 if len(source.shape) == 1 else source.shape[-1] ** -0.5
            prefix = "body." if family == "v3" and not source.name.startswith("tied.") else ""
            tensors[prefix + source.name] = (noise * scale).to(torch.bfloat16).cpu()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors")
    return folder


if __name__ == "__main__":
    print(write(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None))
