"""Files that are written whole or not at all. Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file, and the folders above it; one that is there is replaced in one step. Raises OSError."""
    with replacing(path, path.with_name(f".{uuid.uuid4().hex}.part")) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path, partial: Path) -> Iterator[Path]:
    """`partial`, to be written and closed inside; it becomes `path` in one step, or goes where an error ends it.

    It stands beside the target, so that the rename stays on one disk. Raises OSError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
