"""Folders as ComfyUI knows them: input, output, user, and of models, also in extra_model_paths.yaml. Opens none."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import folder_paths

from ...engine import HiggsError
from .portable_names import portable_parts


def register(name: str, extensions: Collection[str] = ()) -> None:
    """Make models/`name` known to ComfyUI. What extra_model_paths.yaml says of `name` stays first.

    extensions: of the files there, for a folder that is ours alone; what other packs keep there may have any.
    """
    folder_paths.add_model_folder_path(name, str(below_models(name)))
    if extensions:  # ComfyUI takes an empty set for "any file", and sets one for every key it reads from the yaml
        paths, known = folder_paths.folder_names_and_paths[name]
        folder_paths.folder_names_and_paths[name] = (paths, {*known, *extensions})


def registered(name: str) -> list[Path]:
    """The folders of that name, ours or another pack's; the first is where files are saved."""
    paths, _ = folder_paths.folder_names_and_paths.get(name, ([], ()))
    return [Path(path) for path in paths]


def below_models(name: str) -> Path:
    return Path(folder_paths.models_dir, name)


def output() -> Path:
    return Path(folder_paths.get_output_directory())


def input_folder() -> Path:
    return Path(folder_paths.get_input_directory())


def temp() -> Path:
    """For files that ComfyUI drops when it ends."""
    return Path(folder_paths.get_temp_directory())


def user() -> Path:
    """For what ComfyUI and its users set, which no workflow can write."""
    return Path(folder_paths.get_user_directory())


def known() -> list[Path]:
    """All folders of files for workflows: input, output, temp, models, and those that a yaml file or a pack names."""
    named = [Path(path) for paths, _ in folder_paths.folder_names_and_paths.values() for path in paths]
    return [input_folder(), output(), temp(), Path(folder_paths.models_dir), *named]


def below_output(name: str) -> Path:
    """A folder below ComfyUI's output. Raises HiggsError for a name that leads elsewhere or is not portable."""
    parts = portable_parts(name.strip().rstrip("/\\"))
    if not parts:
        raise HiggsError(
            f"folder is {name[:80]!r}, which is not inside ComfyUI's output folder. Use letters and digits, with / "
            "for subfolders."
        )
    return output().joinpath(*parts)


def files_below(root: Path) -> Iterator[Path]:
    """Files in a folder and in the folders there, linked ones too, as ComfyUI lists them."""
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder that it lies in
            below.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in names)


def files_in_input(suffixes: Collection[str]) -> dict[str, Path]:
    """Name -> file of those in ComfyUI's input folder, and in the folders there, that end so."""
    root = input_folder()
    found = [path for path in files_below(root) if path.suffix.lower() in suffixes and path.is_file()]
    return {path.relative_to(root).as_posix(): path for path in sorted(found)}
