"""Files that are written whole or not at all, and read whole up to a limit; a lock on the folder they are in."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

UNFINISHED = f".{'?' * 32}.part"  # files that killed runs leave, as a glob
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # what a lock that another run holds raises


def read_whole(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises OSError for one of more than `most` bytes, and for a pipe, a device and a folder."""
    try:
        state = path.stat()
    except ValueError as error:  # a zero byte in its name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is not a file")
    if state.st_size > most:
        raise OSError(
            errno.EFBIG, f"it has {state.st_size / 1e6:,.0f} MB, but at most {most / 1e6:,.0f} MB can be read"
        )
    with path.open("rb") as file:
        return file.read(most)


def file_stamp(path: Path | None) -> list[int]:
    """[bytes, time of the last change in ns] of a file; empty if there is none. Differs once it is written again."""
    return [path.stat().st_size, path.stat().st_mtime_ns] if path and path.is_file() else []


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file, and the folders above it; one that is there is replaced in one step. Raises OSError."""
    with replacing(path) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file to be written and closed inside; it becomes `path` in one step, or is removed after an error.

    It stands beside the target, so that the rename stays on one disk. No other writer has its name. Raises OSError.
    """
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Lock a file, made if need be; false if another run holds it. The lock dies with its process.

    True also where there are no locks, as on some network drives. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        is_held = False
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_held = error.errno in _HELD
        yield not is_held
