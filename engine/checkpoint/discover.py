"""Discovery of checkpoints in folders and in Hugging Face's cache, by file names and config.json."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import constants

from ..core.errors import HiggsError
from ..files.gguf_header import SUFFIX, is_gguf
from ..files.json_file import read_json
from .catalog import DOWNLOADS, Repo
from .gguf_file import has_file, side_file
from .hf_config import family_of
from .tensor_file import weight_files

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
CODEC_SUBFOLDER = "audio_tokenizer"
_DEPTH = 3  # folder levels searched below a root
_UNFINISHED = ("*.incomplete", "*.part", "*.aria2", "*.crdownload")


@dataclass(frozen=True)
class Match:
    """A folder or GGUF file that is, or should become, a checkpoint."""

    name: str  # for lists
    path: Path
    family: str  # "v3" or "v2"; empty if config.json is missing
    complete: bool
    note: str = ""  # what is missing, and what to do


def missing_parts(folder: Path) -> list[str]:
    """Return sentences on what a talker's folder or GGUF file lacks, empty if it is complete. Reads no weights."""
    lacks = [f"{name} is missing." for name in (CONFIG, TOKENIZER) if not has_file(side_file(folder, name))]
    if is_gguf(folder):
        return lacks
    try:
        if not weight_files(folder):
            lacks.append("It contains no .safetensors file.")
    except HiggsError as error:
        lacks.append(str(error))
    if lacks:
        lacks += [f"{path.name} is an unfinished download." for path in _unfinished(folder)]
    return lacks


def find_checkpoints(roots: Sequence[Path | str], depth: int = _DEPTH) -> list[Match]:
    """Find checkpoints in `roots` and up to `depth` levels below, sorted by name. Fast enough for a drop-down."""
    matches: dict[Path, Match] = {}
    for root in map(Path, roots):
        for checkpoint in _search(root, root, depth):
            matches.setdefault(checkpoint.path, checkpoint)
    named: dict[str, Match] = {}
    for checkpoint in matches.values():
        parts, count = checkpoint.path.parts, checkpoint.name.count("/") + 1
        while (name := "/".join(parts[-count:])) in named:  # same name under two roots: add the root's name
            count += 1
        named[name] = replace(checkpoint, name=name)
    return sorted(named.values(), key=lambda checkpoint: checkpoint.name.lower())


def find_in_hf_cache() -> list[Match]:
    """Find published checkpoints in Hugging Face's cache, pinned revisions first. Uses no network."""
    matches = []
    for download in DOWNLOADS.values():
        for folder in (folders := cached_snapshots(download.talker)):
            name = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
            if folder.name != download.talker.revision and [f.parent for f in folders].count(folder.parent) > 1:
                name += f"@{folder.name[:7]}"  # one of several, and not the pinned revision
            matches.append(_recognise(folder, name))
    return list(filter(None, matches))


def cached_snapshots(repo: Repo) -> list[Path]:
    """Return the folders of `repo` in Hugging Face's cache: the pinned revision first, then the newest."""
    names = [f"models--{name.replace('/', '--')}" for name in (repo.id, *repo.former)]
    places = [Path(constants.HF_HUB_CACHE) / name / "snapshots" for name in names]
    snapshots = [folder for place in places if place.is_dir() for folder in place.iterdir() if folder.is_dir()]
    return sorted(snapshots, key=lambda folder: (folder.name != repo.revision, -folder.stat().st_mtime))


def _search(root: Path, folder: Path, depth: int) -> Iterator[Match]:
    """Yield checkpoints in `folder` and up to `depth` levels below. Skips hidden folders and those in a checkpoint."""
    try:
        checkpoint = _recognise(folder, folder.relative_to(root).as_posix() if folder != root else root.name)
        files = sorted(folder.glob(f"*{SUFFIX}"))
    except OSError:  # no permission to list the folder
        return
    if checkpoint:
        yield checkpoint
    for path in files:
        name = path.relative_to(root).as_posix()
        yield from filter(None, [_recognise_gguf(path, name if folder != root else f"{root.name}/{name}")])
    if depth == 0 or (checkpoint and checkpoint.family) or not folder.is_dir():
        return
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for path in below:
        yield from _search(root, Path(path), depth - 1)


def _recognise_gguf(path: Path, name: str) -> Match | None:
    try:
        config = side_file(path, CONFIG)
        family = family_of(read_json(config)) if has_file(config) else None
    except HiggsError as error:
        return Match(name, path, "", False, str(error)) if "higgs" in path.name.lower() else None
    if family is None:
        return None
    tokenizer = side_file(path, TOKENIZER)
    lacks = "" if has_file(tokenizer) else f"{tokenizer} is missing."
    return Match(name, path, family, not lacks, lacks)


def _recognise(folder: Path, name: str) -> Match | None:
    if any(folder.glob(f"*{SUFFIX}")) and not any(folder.glob("*.safetensors")):
        return None  # each GGUF file is a match of its own
    if not (folder / CONFIG).is_file():
        lowered = folder.name.lower()
        if "higgs" not in lowered or "tokenizer" in lowered:
            return None
        if not any(folder.glob("model*.safetensors")) and not _unfinished(folder):
            return None
        return Match(name, folder, "", False, " ".join(missing_parts(folder)))
    try:
        family = family_of(read_json(folder / CONFIG))
    except HiggsError as error:
        return Match(name, folder, "", False, str(error)) if "higgs" in folder.name.lower() else None
    if family is None:
        return None
    lacks = missing_parts(folder)
    return Match(name, folder, family, not lacks, " ".join(lacks))


def _unfinished(folder: Path) -> list[Path]:
    places = (folder, folder / ".cache" / "huggingface" / "download")
    return [path for place in places for pattern in _UNFINISHED for path in sorted(place.glob(pattern))]
