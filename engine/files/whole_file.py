"""Atomic writes, bounded reads, and file locks."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

UNFINISHED = f".{'?' * 32}.part"  # glob for partial files of killed runs
_PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds before a file that Windows refuses to replace is tried again
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # errors if another process holds the lock


def read_whole(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Raises OSError if it exceeds `most` bytes, or is a pipe, device or folder."""
    try:
        state = path.stat()
    except ValueError as error:  # NUL in the name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is not a file")
    if state.st_size > most:
        raise OSError(
            errno.EFBIG, f"it has {state.st_size / 1e6:,.0f} MB, but at most {most / 1e6:,.0f} MB can be read"
        )
    with path.open("rb") as file:
        return file.read(most)


def path_for_c(path: Path | str) -> bytes | str:
    """Return a path for soundfile, which cannot encode a name that is not UTF-8, as old archives leave on Linux."""
    return str(path) if sys.platform == "win32" else os.fsencode(path)


def file_stamp(path: Path | None) -> list[int]:
    """Return [bytes, modification time in ns] of a file, to detect changes. Empty if there is none."""
    return [path.stat().st_size, path.stat().st_mtime_ns] if path and path.is_file() else []


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and its parent folders, replacing an existing file atomically. Raises OSError."""
    with replacing(path) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a partial file to write and close. It replaces `path` atomically, or is removed after an error.

    It is beside the target, so that the rename stays on one disk, and has a unique name. Raises OSError.
    """
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace(partial: Path, path: Path) -> None:
    """Rename over a file, if there is one. On Windows a virus scanner or an index may hold either for a moment.

    Raises OSError.
    """
    for pause in _PAUSES if sys.platform == "win32" else ():
        try:
            return os.replace(partial, path)
        except PermissionError:
            time.sleep(pause)
    os.replace(partial, path)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Lock a file, created if missing. Yields False if another run holds it. The lock ends with its process.

    Also yields True on file systems without locks, such as some network drives. Raises OSError.
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
