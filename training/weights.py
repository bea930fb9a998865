"""Save the talker's tensors under the published names, in files small enough for a repository."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .talker import Shape, Talker

MOST_BYTES = 15_500_000  # per file
_TOP = {
    "text.weight": "tied.embedding.text_embedding.weight",
    "codes.weight": "tied.embedding.modality_embeddings.0.embedding.weight",
    "norm.weight": "body.norm.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def published_name(name: str) -> str:
    """Return the name in v3's files of a parameter of `Talker`."""
    if name in _TOP:
        return _TOP[name]
    _, layer, part, leaf = name.split(".")
    return f"body.layers.{layer}.{_LAYER[part]}.{leaf}"


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a `Talker`'s state as in v3's files, in bf16 on the CPU."""
    return {published_name(name): tensor.detach().to("cpu", torch.bfloat16) for name, tensor in state.items()}


def save_shards(folder: Path, stem: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> list[Path]:
    """Write tensors, in order, into as few files of at most MOST_BYTES as possible. Each appears whole or not at all.

    The files are STEM-00001-of-0000K.safetensors. Files of an earlier, longer series are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    series: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > MOST_BYTES:
            series.append({})
            size = 0
        series[-1][name] = tensor.contiguous()
        size += tensor.nbytes
    paths = [folder / f"{stem}-{i + 1:05d}-of-{len(series):05d}.safetensors" for i in range(len(series))]
    for path, held in zip(paths, series, strict=True):
        partial = path.with_suffix(".part")
        save_file(held, partial, metadata={"format": "pt", **metadata})
        partial.replace(path)
    for old in set(folder.glob(f"{stem}-*-of-*.safetensors")) - set(paths):
        old.unlink()
    return paths


def save_talker(folder: Path, shape: Shape, state: dict[str, torch.Tensor], note: dict) -> list[Path]:
    """Save a `Talker`'s state. `note` describes its training."""
    about = {"shape": json.dumps(shape.as_dict()), "training": json.dumps(note)}
    return save_shards(folder, "talker", published(state), about)


def load_talker(folder: Path) -> tuple[Shape, dict[str, torch.Tensor], dict]:
    """Load what `save_talker` wrote: shape, state for `Talker.load_state_dict`, and note."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("talker-*-of-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert tensors, f"{folder} holds no talker"
    shape = Shape(**json.loads(about["shape"]))
    with torch.device("meta"):
        names = Talker(shape).state_dict()
    return shape, {name: tensors[published_name(name)].float() for name in names}, json.loads(about["training"])
