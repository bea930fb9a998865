"""Output folders that are complete or absent, and checks that files are writable. Errors name the path."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import HiggsError
from ..files.file_list import sole_writer, write_errors
from ..files.whole_file import replace, write_whole

_PART, _LOCK = ".part", ".lock"  # in the new folder while it is filled, and beside its files
_MOVED = ".moved"  # names of the files that leave it at the end, so that a killed run's are known


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill. `path` gets all of it, or nothing after an error. Leftovers of a killed run are removed.

    Raises HiggsError if `path` is not empty, if another run fills it, or if it cannot be written.
    """
    partial, is_ours = path / _PART, False
    try:
        with write_errors(path):
            moved = json.loads(names.read_bytes()) if (names := partial / _MOVED).is_file() else []
            if path.exists() and (not path.is_dir() or {one.name for one in path.iterdir()} - {_PART, *moved}):
                raise HiggsError(f"{path} already exists. Choose a new folder, or empty this one.")
        with write_errors(path), sole_writer(path, f"{_PART}/{_LOCK}"):
            is_ours = True
            _remove(*(path / name for name in moved), *_inside(partial))
            yield partial
            made = sorted(_inside(partial), key=lambda one: one.suffix == ".safetensors")  # weights last
            write_whole(names, json.dumps([one.name for one in made]).encode())
            try:
                for one in made:
                    replace(one, path / one.name)
            except BaseException:
                _remove(*(path / one.name for one in made))
                raise
    finally:
        if is_ours:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds the result
                path.rmdir()


def _remove(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _inside(partial: Path) -> list[Path]:
    return [one for one in partial.iterdir() if one.name != _LOCK]


def writable(name: str, *suffixes: str) -> Path:
    """Return the path, with its folder made. Checks that it is writable before any work is done."""
    path = Path(name)
    if path.suffix.lower() not in suffixes:
        raise HiggsError(f"{path} does not end in {' or '.join(suffixes)}. Give a file name that does.")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        if not is_new and not path.is_file():  # opening a pipe would never end
            raise HiggsError(f"{path} exists and is not a file. Give another name.")
        path.open("ab").close()
        if is_new:
            path.resolve().unlink()  # where a link leads
    return path
