"""ComfyUI's folders: input, output, user and models, including those in extra_model_paths.yaml."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PureWindowsPath

import folder_paths

from ...engine import HiggsError, portable_parts

WHISPER = "whisper"  # below models/


def register(name: str, extensions: Collection[str] = ()) -> None:
    """Register models/`name` with ComfyUI. Entries of `name` in extra_model_paths.yaml stay first.

    extensions: of the files there, for a folder of our own. Empty accepts any, as in folders shared with other packs.
    """
    folder_paths.add_model_folder_path(name, str(below_models(name)))
    if extensions:  # ComfyUI takes an empty set for "any file", and sets one for every key it reads from the yaml
        paths, known = folder_paths.folder_names_and_paths[name]
        folder_paths.folder_names_and_paths[name] = (paths, {*known, *extensions})


def registered(name: str) -> list[Path]:
    """Return the folders registered under a name, ours or another pack's. Files are saved in the first."""
    paths, _ = folder_paths.folder_names_and_paths.get(name, ([], ()))
    return [Path(path) for path in paths]


def below_models(name: str) -> Path:
    return Path(folder_paths.models_dir, name)


def output() -> Path:
    return Path(folder_paths.get_output_directory())


def input_folder() -> Path:
    return Path(folder_paths.get_input_directory())


def temp() -> Path:
    """Return the folder that ComfyUI empties when it ends."""
    return Path(folder_paths.get_temp_directory())


def user() -> Path:
    """Return the folder of user settings, where no workflow can write."""
    return Path(folder_paths.get_user_directory())


def known() -> list[Path]:
    """Return all folders workflows may read: input, output, temp, models, and those that a yaml file or a pack adds."""
    named = [Path(path) for paths, _ in folder_paths.folder_names_and_paths.values() for path in paths]
    return [input_folder(), output(), temp(), Path(folder_paths.models_dir), *named]


def below_output(name: str) -> Path:
    """Return a folder below ComfyUI's output. Raises HiggsError if the name leads elsewhere or is not portable."""
    plain = name.strip().rstrip("/\\")
    if not plain:
        raise HiggsError("folder is empty. Enter the name of a folder inside ComfyUI's output folder.")
    parts = portable_parts(plain)
    if not parts:
        leads_out = PureWindowsPath(plain).anchor or ".." in PureWindowsPath(plain).parts
        why = "not inside ComfyUI's output folder" if leads_out else "not a valid name on every system"
        raise HiggsError(f"folder is {name[:80]!r}, which is {why}. Use letters and digits, with / for subfolders.")
    return output().joinpath(*parts)


def output_pattern(pattern: str) -> str:
    """Return a pattern of Save nodes without blanks around it, such as audio/%year%/speech.

    Raises HiggsError if it is empty, leads out of ComfyUI's output folder, or is not a valid name on every system.
    """
    plain = pattern.strip()
    if not portable_parts(plain):
        raise HiggsError(
            f"filename_prefix is {pattern[:80]!r}, which is not a name inside ComfyUI's output folder that every "
            "system allows. Use one such as audio/higgs."
        )
    return plain


def next_output(pattern: str, suffix: str) -> Path:
    """Return the next free name of ComfyUI's Save nodes for a pattern. Makes its folder.

    Raises HiggsError as `output_pattern`, or if the folder cannot be made.
    """
    try:
        folder, name, number, *_ = folder_paths.get_save_image_path(output_pattern(pattern), str(output()))
    except OSError as error:
        raise HiggsError(f"the folder of {pattern[:80]!r} could not be made ({error.strerror or error}).") from error
    while (path := Path(folder, f"{name}_{number:05}_.{suffix}")).exists():
        number += 1
    return path


def files_below(root: Path) -> Iterator[Path]:
    """Yield the files below a folder, but for the ._ files of macOS. Like ComfyUI, follows links."""
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to one of its own parents
            below.clear()
            continue
        seen.add(real)
        yield from (Path(folder, name) for name in names if not name.startswith("._"))


def files_in_input(suffixes: Collection[str]) -> dict[str, Path]:
    """Map names to files with one of the suffixes, in and below ComfyUI's input folder."""
    root = input_folder()
    paths = [path for path in files_below(root) if path.suffix.lower() in suffixes and path.is_file()]
    return {path.relative_to(root).as_posix(): path for path in sorted(paths)}
