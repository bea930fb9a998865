"""LoRA adapters as PEFT saves them, and the checkpoints they merge to, by PEFT if it is installed.

Otherwise in the form of peft 0.21.2. Keys are as `get_peft_model_state_dict` of utils/save_and_load.py leaves them
(without the names of the adapter and of `modules_to_save`, with "base_model.model." in front). Settings are as
`save_pretrained` of config.py writes them. Merging follows `Linear.merge` and `Embedding.merge` of tuners/lora/layer.py
and `DoraLinearVariant.merge_unsafe` of tuners/lora/variants.py.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..engine.checkpoint.talker_layout import V3_CODEC
from ..engine.checkpoint.tensor_file import open_folder
from .port_files import EMBEDDING, HEAD

_LINEAR = r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
_CODES = r".*(modality_embeddings\.0\.embedding|embed_audio_tokens\.embed_audio_tokens|audio_codebook_embeddings)"
_TEXT = r".*(text_embedding|embed_tokens)"
KINDS = {
    "plain": {"r": 4, "lora_alpha": 6, "target_modules": _LINEAR},
    "rslora": {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": r".*\.(k_proj|up_proj)"},
    "patterns": {
        "r": 4,
        "lora_alpha": 6,
        "rank_pattern": {"v_proj": 2, r"layers\.1\.mlp\.down_proj": 8},
        "alpha_pattern": {"v_proj": 16, "layers.0.self_attn.q_proj": 1},
        "target_modules": _LINEAR,
    },
    "dora": {"r": 4, "lora_alpha": 6, "use_dora": True, "target_modules": r".*\.(q_proj|gate_proj|down_proj)"},
    "embedding": {"r": 4, "lora_alpha": 6, "target_modules": rf"{_CODES}|{_TEXT}"},
    "whole": {"r": 4, "lora_alpha": 6, "target_modules": r".*\.o_proj", "modules_to_save": ["norm", "audio_lm_head"]},
}


class _Tree(torch.nn.Module):
    """A model whose modules have the names of a checkpoint."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        super().__init__()
        for key, tensor in tensors.items():
            *path, last = key.removesuffix(".weight").split(".")
            place: torch.nn.Module = self
            for word in path:
                if not hasattr(place, word):
                    place.add_module(word, torch.nn.Module())
                place = getattr(place, word)
            place.add_module(last, _module(key, tensor))


def _module(key: str, tensor: torch.Tensor) -> torch.nn.Module:
    if tensor.dim() == 1:
        module = torch.nn.RMSNorm(len(tensor))
    elif "embed" in key:
        module = torch.nn.Embedding(*tensor.shape)
    else:
        module = torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False)
    module.weight = torch.nn.Parameter(tensor.clone())
    return module


def tree_of(base: Path, layout: Callable[[str], str]) -> torch.nn.Module:
    """Return a model of the v3 checkpoint in `base` in fp32, without the codec, with names by `layout` and a head."""
    stored = open_folder(base)
    names = [name for name in stored.shapes if name.endswith(".weight") and not name.startswith(V3_CODEC)]
    tensors = {name: stored.get(name).float() for name in names}
    return _Tree({layout(name): tensor for name, tensor in (tensors | {HEAD: tensors[EMBEDDING]}).items()})


def write_adapter(base: Path, folder: Path, kind: str, seed: int = 0, by_hand: bool = False) -> dict[str, torch.Tensor]:
    """Write an adapter with random weights for the checkpoint in `base`, and return its merged tensors in fp32."""
    stored = open_folder(base)
    names = [name for name in stored.shapes if name.endswith(".weight") and not name.startswith(V3_CODEC)]
    tensors = {name: stored.get(name).float() for name in names}
    settings = {"init_lora_weights": True, **KINDS[kind]}
    generator = torch.Generator().manual_seed(seed)
    if by_hand or not importlib.util.find_spec("peft"):
        return _by_hand(tensors, folder, settings, generator)
    import peft

    model = peft.get_peft_model(_Tree(tensors), peft.LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data = parameter.data + noise * _spread(name, parameter)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    return {name: tensor.detach().clone() for name, tensor in model.merge_and_unload().state_dict().items()}


def _spread(name: str, parameter: torch.Tensor) -> float:
    """Return the spread of noise that changes a module's output considerably."""
    return 0.1 if parameter.dim() == 1 else 1.0 / math.sqrt(parameter.shape[-1])


def merged_folder(base: Path, folder: Path, merged: dict[str, torch.Tensor]) -> Path:
    """Write the checkpoint in `base` with those tensors. Both halves of tied weights are stored."""
    folder.mkdir(parents=True)
    stored = open_folder(base)
    whole = {name: stored.get(name).clone() for name in stored.shapes} | merged
    save_file(whole, folder / "model.safetensors")
    for path in base.rglob("*"):
        if (path.is_file() and "model.safetensors" not in path.name) or (path.parent != base and path.is_file()):
            (folder / path.relative_to(base)).parent.mkdir(exist_ok=True)
            (folder / path.relative_to(base)).write_bytes(path.read_bytes())
    return folder


def _by_hand(
    tensors: dict[str, torch.Tensor], folder: Path, settings: dict, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    saved, merged = {}, dict(tensors)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])

    for name, weight in tensors.items():
        module = name.removesuffix(".weight")
        prefix = f"base_model.model.{module}"
        if module.endswith(tuple(settings.get("modules_to_save", ()))):  # as PEFT: also input_layernorm is a "norm"
            merged[name] = saved[f"{prefix}.weight"] = weight + 0.1 * noise(*weight.shape)
        if not re.fullmatch(settings["target_modules"], module):
            continue
        rank, alpha = (_own(settings, key, module) for key in ("r", "lora_alpha"))
        factor = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        rows, width = weight.shape
        if "embed" in module:
            a, b = noise(rank, rows), noise(width, rank)
            saved |= {f"{prefix}.lora_embedding_A": a, f"{prefix}.lora_embedding_B": b}
            merged[name] = weight + (b @ a).T * factor
            continue
        a, b = noise(rank, width), noise(rows, rank)
        saved |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
        moved = weight + b @ a * factor
        if settings.get("use_dora"):
            length = torch.linalg.norm(weight, dim=1) * (1 + 0.1 * noise(rows))
            saved[f"{prefix}.lora_magnitude_vector"] = length
            moved = (length / torch.linalg.norm(moved, dim=1)).view(-1, 1) * moved
        merged[name] = moved
    folder.mkdir(parents=True)
    save_file(saved, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    whole = {"peft_type": "LORA", "base_model_name_or_path": None, "bias": "none", "fan_in_fan_out": False, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(whole, indent=2, sort_keys=True), encoding="utf-8")
    return merged


def _own(settings: dict, key: str, module: str) -> float:
    """Choose like `get_pattern_key` of utils/other.py."""
    patterns = settings.get({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key], {})
    return next((value for name, value in patterns.items() if re.match(rf"(.*\.)?({name})$", module)), settings[key])
