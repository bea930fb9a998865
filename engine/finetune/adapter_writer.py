"""A trained adapter's files: tensors and settings as PEFT has them, and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as safetensors_bytes

from ..checkpoint.adapter_files import adapter_files
from ..core.config import VERSION
from ..core.errors import HiggsError
from ..files.file_list import names_beside, write_errors, write_file
from ..files.whole_file import replacing

PEFT_PREFIX = "base_model.model."
_FILE = ".safetensors"


def check_place(out: Path) -> None:
    """Raise HiggsError if an adapter cannot be written there. Makes the folder."""
    if out.suffix and out.suffix != _FILE:
        raise HiggsError(f"{out} is not a name for an adapter. Give a .safetensors file, or a folder.")
    with write_errors(out):
        (out.parent if out.suffix else out).mkdir(parents=True, exist_ok=True)


def write_adapter(
    out: Path, tensors: Mapping[str, torch.Tensor], rank: int, alpha: float, base: str, card: Mapping[str, object]
) -> None:
    """Write an adapter to a .safetensors file, its settings and card beside it, or to a folder with PEFT's names.

    Raises HiggsError if a file cannot be written.
    """
    weights, settings, card_file = _files(out)
    modules = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in tensors if ".lora_" in name})
    whole = [name.removeprefix(PEFT_PREFIX).removesuffix(".weight") for name in tensors if ".lora_" not in name]
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "modules_to_save": whole or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    write_file(
        weights, safetensors_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    )
    write_file(settings, (json.dumps(config, indent=2) + "\n").encode())
    write_file(card_file, _card(base, card).encode())


def copy_adapter(source: Path, out: Path) -> None:
    """Copy what `write_adapter` wrote to another place. Raises HiggsError if a file cannot be written."""
    for path, place in zip(_files(source), _files(out), strict=True):
        with write_errors(place), replacing(place) as partial:
            shutil.copyfile(path, partial)


def keep_earlier(out: Path) -> str:
    """Rename the files that an adapter at `out` will replace. Returns a warning, empty if there are none.

    Raises HiggsError if a file cannot be renamed.
    """
    there = [path for path in dict.fromkeys((*adapter_files(out), *_files(out))) if path.exists()]
    places = (
        [other / path.name if out.is_dir() else other.with_suffix(path.suffix) for path in there]
        for other in names_beside(out, "earlier")
    )
    kept = next(paths for paths in places if not any(path.exists() for path in paths))
    for path, place in zip(there, kept, strict=True):
        with write_errors(place):
            place.parent.mkdir(exist_ok=True)
            path.replace(place)
    names = ", ".join(str(place.relative_to(out.parent)) for place in kept)
    return f"Files that this training would have replaced were kept as {names}." if names else ""


def _files(out: Path) -> tuple[Path, Path, Path]:
    """Return the paths of an adapter's weights, settings and card."""
    weights, settings, *_ = adapter_files(out)
    return weights, settings, out / "README.md" if out.is_dir() else out.with_suffix(".md")


def _card(base: str, made: Mapping[str, object]) -> str:
    """Return a model card. It holds no sound and no words of the clips."""
    head = f"---\nlibrary_name: peft\nbase_model: {json.dumps(base)}\ntags: [lora, text-to-speech, higgs-audio]\n---\n"
    rows = "\n".join(f"| {name} | {value} |" for name, value in made.items())
    return (
        f"{head}\n# A voice for {base}\n\nA LoRA trained by ComfyUI-Higgs-TTS {VERSION}. It opens in Higgs Load "
        f"LoRA and in PEFT.\n\n| | |\n| --- | --- |\n{rows}\n\nUse it only as the speaker allows.\n"
    )
