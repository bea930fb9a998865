"""Where commands write: a folder that is new, whole or not there, and a file that can be written. Errors name them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import HiggsError
from ..file_list import write_errors


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """For the length of this `with`, `path` is there to be filled; after an error it is gone.

    Raises HiggsError where it holds something already, and where it cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise HiggsError(f"{path} already exists. Give a new folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise HiggsError(f"{path} cannot be written ({error.strerror}). Give another folder.") from error
        raise


def writable(name: str, *suffixes: str) -> Path:
    """The path, its folder made. Tried before the work, so that none is lost."""
    path = Path(name)
    if path.suffix.lower() not in suffixes:
        raise HiggsError(f"{path} does not end in {' or '.join(suffixes)}. Give a file name that does.")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    return path
