"""A folder that a command fills: new, whole or not there, and an error that names it. Knows nothing of its content."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import HiggsError


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
