"""Checkpoints in ComfyUI's folders, and the names under which workflows store them. Opens no tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...engine import (
    DOWNLOADS,
    EMBEDDED,
    EMBEDDED_NAME,
    HiggsError,
    Match,
    file_stamp,
    find_checkpoints,
    find_in_hf_cache,
)
from ..comfy import folders
from .saved_names import as_name, closest, parts_of

FOLDER = "higgs_tts"  # below models/, and our key in extra_model_paths.yaml
OTHER_FOLDERS = ("TTS", "tts", "higgsv3tts", "higgs_audio")  # where other packs keep the same checkpoints
AUTO = "auto"  # the best local checkpoint
DOWNLOAD = "download: "  # prefix of choices that are downloaded when they run

folders.register(FOLDER, {".safetensors", ".pth"})


def model_roots() -> list[Path]:
    """Return the folders searched for checkpoints, ours first. TTS and tts count once if they are the same folder."""
    candidates = folders.registered(FOLDER)
    for name in OTHER_FOLDERS:
        candidates += [*folders.registered(name), folders.below_models(name)]
    roots: list[Path] = []
    for folder in candidates:
        if folder.is_dir() and not any(folder.samefile(root) for root in roots):
            roots.append(folder)
    return roots


def checkpoints() -> dict[str, Match]:
    """Map names in the loader's list to local checkpoints in ComfyUI's folders, Hugging Face's cache and ours.

    Reads the disk every time. Complete checkpoints come before unfinished downloads, and take a shared name first.
    """
    embedded = [replace(match, name=EMBEDDED_NAME) for match in find_checkpoints([EMBEDDED])]
    matches = [*find_checkpoints(model_roots()), *find_in_hf_cache(), *embedded]
    named: dict[str, Match] = {}
    for checkpoint in sorted(matches, key=lambda checkpoint: not checkpoint.complete):
        named.setdefault(checkpoint.name, checkpoint)
    return named


def choices() -> list[str]:
    """Return the loader's list: "auto", each local checkpoint, then the downloads."""
    return [AUTO, *checkpoints(), *(DOWNLOAD + label for label in DOWNLOADS)]


def find_checkpoint(name: str) -> Match:
    """Return the checkpoint that a workflow calls `name`, even if its folder differs from when it was saved.

    "auto" is Higgs TTS 3 if present, else Higgs Audio v2, else the embedded checkpoint. Raises HiggsError if nothing
    has that name, or files are missing.
    """
    known, name = checkpoints(), as_name(name, "checkpoint")
    if name == AUTO:
        return min((checkpoint for checkpoint in known.values() if checkpoint.complete), key=_preference)
    matches = closest(known, name)
    if not matches:
        raise HiggsError(
            f"there is no checkpoint {name[:80]!r:.90} in ComfyUI's model folders (found: {', '.join(known)}). Choose "
            f"'{AUTO}' for the best checkpoint you have, or '{EMBEDDED_NAME}'. To add a checkpoint, "
            f"put its folder into models/{FOLDER} and press R, or choose a '{DOWNLOAD}' entry."
        )
    match = known[matches[0]]
    if not match.complete:
        raise HiggsError(
            f"{match.path} is incomplete. {match.note} Download it again, or choose another checkpoint from the list."
        )
    return match


def _preference(match: Match) -> tuple:
    """Sort key for "auto": v3, v2, then the embedded checkpoint. Published names come first, then alphabetically."""
    published = {name.lower() for download in DOWNLOADS.values() for name in download.names}
    is_published = parts_of(match.name)[-1] in published
    return match.name == EMBEDDED_NAME, match.family != "v3", not is_published, match.name.lower()


def download_root() -> Path:
    return folders.registered(FOLDER)[0]


def fingerprint(folder: Path) -> list[list]:
    """Return [name, bytes, time] of each file of a checkpoint. The checkpoint is loaded again when the list changes."""
    if folder.is_file():  # a GGUF file
        return [[folder.name, *file_stamp(folder)]]
    files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    return [[path.relative_to(folder).as_posix(), *file_stamp(path)] for path in files]
