"""Checkpoints and adapters as the public trainers of Higgs TTS 3 save them, under the transformers port's names.

Names as in `_HIGGS_KEY_MAPPING` of Higgs-tts-3-finetune (model/modeling.py). Its full fine-tunes lack the codec and the
tokenizer. Higgs Audio TTS Easy GUI adapts the port's `model` alone, and pickles the code embedding and head beside it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..engine.checkpoint.talker_layout import V3_CODEC
from ..engine.checkpoint.tensor_file import open_folder

EMBEDDING = "tied.embedding.modality_embeddings.0.embedding.weight"
HEAD = "tied.head.modality_heads.0.weight"
_NAMES = (
    (r"^tied\.embedding\.text_embedding\.", "model.embed_tokens."),
    (r"^tied\.embedding\.modality_embeddings\.0\.embedding\.", "audio_embedding."),
    (r"^tied\.head\.modality_heads\.0\.", "audio_head."),
    (r"^body\.", "model."),
)
WRITERS = ("finetune", "gui", "boson")  # of an adapter


def port_name(name: str) -> str:
    """Return the port's name of a tensor or module with Boson's."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def write_port(base: Path, folder: Path, head: torch.Tensor | None = None, tokenizer: bool = True) -> Path:
    """Write the v3 checkpoint in `base` under the port's names, without the codec. head: stored apart if given."""
    folder.mkdir(parents=True)
    stored = open_folder(base)
    tensors = {port_name(n): stored.get(n).clone() for n in stored.shapes if not n.startswith((V3_CODEC, "tied.head."))}
    if head is not None:
        tensors["audio_head.weight"] = head
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", *(("tokenizer.json", "tokenizer_config.json") if tokenizer else ())):
        shutil.copy(base / name, folder)
    return folder


def with_head(base: Path, folder: Path, head: torch.Tensor) -> Path:
    """Write the v3 checkpoint in `base` under Boson's names with a head of its own."""
    stored = open_folder(base)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    save_file({name: stored.get(name).clone() for name in stored.shapes} | {HEAD: head}, folder / "model.safetensors")
    return folder


def write_adapter_of(
    writer: str, folder: Path, layers: Mapping[str, torch.Tensor], whole: Mapping[str, torch.Tensor], **settings: object
) -> Path:
    """Write an adapter as `writer` saves it, and return its folder.

    layers: Boson's module name and ".lora_A.weight" or ".lora_B.weight" -> tensor. whole: Boson's tensor names.
    """
    port = {port_name(name): tensor for name, tensor in whole.items()}
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, **settings}
    if writer == "gui":
        folder = folder / "qwen3_lora"
        tensors = {f"base_model.model.{port_name(name).removeprefix('model.')}": layers[name] for name in layers}
        audio = {name.removesuffix(".weight"): {"weight": tensor} for name, tensor in port.items()}
    else:
        named = {**layers, **whole} if writer == "boson" else {**{port_name(n): layers[n] for n in layers}, **port}
        tensors = {f"base_model.model.{name}": tensor for name, tensor in named.items()}
        settings["modules_to_save"] = [name.removesuffix(".weight") for name in port] or None
    folder.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if writer == "gui" and audio:
        torch.save(audio, folder / "higgs_v3_audio_modules.pt")
    return folder
