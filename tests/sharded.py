"""Checkpoints in several files, and with the copies of heads that some published files have."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..engine.checkpoint.tensor_file import INDEX

_COPIES = {
    "tied.head.text_head.weight": "tied.embedding.text_embedding.weight",
    "tied.head.modality_heads.0.weight": "tied.embedding.modality_embeddings.0.embedding.weight",
    "audio_decoder_proj.audio_lm_head.weight": "audio_lm_head.weight",
    "audio_decoder_proj.text_lm_head.weight": "text_lm_head.weight",
}


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 3) -> dict[str, str]:
    """Write tensors into so many files with an index. Returns tensor -> file."""
    names = sorted(tensors)
    where = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names[i::shards]}, folder / file)
        where |= dict.fromkeys(names[i::shards], file)
    (folder / INDEX).write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    return where


def sharded(folder: Path, shards: int) -> Path:
    """Split the file of a checkpoint, with copies of its heads."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    tensors |= {copy: tensors[name].clone() for copy, name in _COPIES.items() if name in tensors}
    whole.unlink()
    write_shards(folder, tensors, shards)
    return folder
