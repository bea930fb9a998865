"""LoRAs in models/loras. Opens no file."""

from __future__ import annotations

from pathlib import Path

from ...engine import ADAPTER_SETTINGS, HiggsError, adapter_files, file_stamp, portable_parts
from ..comfy import folders
from .saved_names import as_name, the_one

FOLDER = "loras"  # ComfyUI's own


def loras() -> dict[str, Path]:
    """Map names to LoRAs: a folder that PEFT saved, or a .safetensors file outside such a folder."""
    named: dict[str, Path] = {}
    for root in folders.registered(FOLDER):
        files = [
            path
            for path in folders.files_below(root)
            if path.name == ADAPTER_SETTINGS or path.suffix.lower() == ".safetensors"
        ]
        saved = {path.parent for path in files if path.name == ADAPTER_SETTINGS} - {root}
        single = (path for path in files if path.name != ADAPTER_SETTINGS and saved.isdisjoint(path.parents))
        for path in [*saved, *single]:
            named.setdefault(path.relative_to(root).as_posix(), path)
    return dict(sorted(named.items(), key=lambda item: item[0].lower()))


def find_lora(name: str) -> Path:
    """Return the file or folder of the LoRA that a workflow calls `name`, matching its last parts if folders differ.

    Raises HiggsError if none or several match.
    """
    known, name = loras(), as_name(name, "LoRA")
    missing = (
        f"there is no LoRA {name[:80]!r:.90} in models/{FOLDER}. Put its .safetensors file or PEFT folder there, then "
        "press R to refresh the list."
    )
    return known[the_one(known, name, "LoRA", missing)]


def lora_target(name: str) -> Path:
    """Return the file in models/loras for a LoRA to be trained. Raises HiggsError if the name leads elsewhere."""
    parts = portable_parts(name.strip().removesuffix(".safetensors"))
    if not parts:
        raise HiggsError(f"name is {name[:80]!r}, which is not a file name. Use letters and digits.")
    roots = folders.registered(FOLDER) or [folders.below_models(FOLDER)]
    return roots[0].joinpath(*parts[:-1], f"{parts[-1]}.safetensors")


def lora_fingerprint(path: Path) -> list[list]:
    """Return [name, bytes, time] of each file read from a LoRA. The LoRA is merged again when the list changes."""
    return [[str(file), *file_stamp(file)] for file in adapter_files(path) if file.is_file()]
