"""Files of LoRA adapters: which ones belong together, which are a training's state, and who wrote them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import HiggsError, shown

SETTINGS = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Higgs Audio TTS Easy GUI trains the code embedding and the head in full, and saves them here beside the adapter.
AUDIO_MODULES = "higgs_v3_audio_modules.pt"
_TENSORS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_LISTED = 400  # characters of a list in a message
# What trainers save to resume: optimiser, learning rate, random numbers, arguments.
_STATE = re.compile(
    r"(optimizer|optimizer_states?|scheduler|scaler|trainer_state|training_(args|state)|rng_state|random_states)"
    r"(_\d+)*\.\w+"
)
# (names in a file, whose they are); the first that matches any name tells.
_TRAINERS = (
    (r"(^|\.)audio_(embedding|head)\.", "a trainer of the transformers port of Higgs TTS 3"),
    (r"(^|\.)(body\.layers|tied)\.", "a trainer of Higgs TTS 3"),
    (r"embed_audio_tokens|audio_(codebook_embeddings|decoder_proj|lm_head|mlp|tower)", "a trainer of Higgs Audio v2"),
    (
        r"^lora_(unet|te\d?)_|(^|\.)(unet|diffusion_model|text_encoder|\w*transformer_blocks)\.",
        "an image model's trainer",
    ),
)


def adapter_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of the adapter at `path`, a file or folder: weights, settings, and in a folder AUDIO_MODULES.

    Any may be missing.
    """
    if path.is_dir():
        weights = next((path / name for name in WEIGHTS if (path / name).is_file()), path / WEIGHTS[0])
        return weights, path / SETTINGS, path / AUDIO_MODULES
    if path.name in WEIGHTS:
        return path, path.with_name(SETTINGS), path.with_name(AUDIO_MODULES)
    return path, path.with_suffix(".json")


def require_weights(path: Path) -> None:
    """Raise HiggsError if `path` has no weights of an adapter. Tells a training's folders and states from adapters."""
    weights = adapter_files(path)[0]
    if _STATE.fullmatch(weights.name):
        raise HiggsError(f"{weights} is the state of a training, not a LoRA. Choose {WEIGHTS[0]} or its folder.")
    if weights.is_file():
        return
    if below := adapters_below(path):
        raise HiggsError(f"{path} is a training's folder with several files. Choose a LoRA in it: {listed(below)}.")
    raise HiggsError(f"{weights} is missing. Choose a LoRA's .safetensors file, or a folder saved by PEFT.")


def adapters_below(folder: Path) -> list[Path]:
    """Return the adapters' folders at most two levels below `folder`, such as a training's checkpoints."""
    return sorted(file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{SETTINGS}"))


def left_unread(path: Path) -> list[str]:
    """Return the names of files beside the adapter at `path` that may hold trained tensors and are not read."""
    read = adapter_files(path)
    files = [file for file in sorted(read[0].parent.glob("*")) if file.suffix.lower() in _TENSORS and file not in read]
    if len(read) < 3:  # one file among other LoRAs
        return [file.name for file in files if file.name == AUDIO_MODULES]
    return [file.name for file in files if not _STATE.fullmatch(file.name)]


def trainer_of(names: Iterable[str]) -> str:
    """Return a sentence on the kind of trainer that wrote tensors with these names, or empty if it is unknown."""
    names = list(names)
    for pattern, trainer in _TRAINERS:
        if any(re.search(pattern, name) for name in names):
            return f"Its names are those of {trainer}. "
    return ""


def listed(things: Iterable[object]) -> str:
    """Return the first things, as many as a short sentence takes, and the number of the others."""
    names = [name if name.isprintable() else shown(name) for name in map(str, things)]
    ends = itertools.accumulate(map(len, names))
    count = max(1, sum(end <= _LISTED for end in ends))
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
