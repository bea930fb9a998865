"""List of the files made in a folder, each with the fingerprint of its sources."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..core.errors import HiggsError
from .whole_file import UNFINISHED, lock, write_whole

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LITTLE = 100e6  # bytes of free space


class FileList:
    """file -> (fingerprint of what it was made of, bytes). `damage` says what is wrong with a list that cannot be read,
    which then counts as absent. kind: what the list says it is, so that another program's file is not taken for one.
    """

    def __init__(self, folder: Path, name: str, kind: str):
        self.folder, self.name, self._kind = folder, name, kind
        self.damage = ""
        self.listed: dict[str, tuple[str, int]] = {}
        try:
            self.listed = self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            self.damage = f"{name} in {folder} cannot be read ({error}), so all files were made again."

    def has(self, file: str, fingerprint: str) -> bool:
        """True if the file is there as it was written, made of just that."""
        known, size = self.listed.get(file, ("", -1))
        path = self.folder / file
        return known == fingerprint and path.is_file() and path.stat().st_size == size

    def forget(self, files: Iterable[str]) -> None:
        """Takes files off the list before they are written anew: where that stops in between, they are made again."""
        files = set(files)
        if self.listed.keys() & files:
            self.listed = {file: entry for file, entry in self.listed.items() if file not in files}
            self.write()

    def write(self) -> None:
        """Writes the list. Raises HiggsError where that cannot be done."""
        entries = {file: {"fingerprint": known, "bytes": size} for file, (known, size) in sorted(self.listed.items())}
        text = json.dumps({"format": self._kind, "files": entries}, indent=1, ensure_ascii=False)
        write_file(self.folder / self.name, text.encode())

    def _read(self) -> dict[str, tuple[str, int]]:
        """Raises ValueError for what is no such list."""
        held = json.loads((self.folder / self.name).read_text(encoding="utf-8"))
        if not isinstance(held, dict) or held.get("format") != self._kind or not isinstance(held.get("files"), dict):
            raise ValueError("it was not written by this pack")
        entries = {}
        for file, entry in held["files"].items():
            known, size = (entry.get("fingerprint"), entry.get("bytes")) if isinstance(entry, dict) else (None, None)
            if not isinstance(known, str) or not isinstance(size, int):
                raise ValueError(f"its entry for {file} is invalid")
            entries[file] = known, size
        return entries


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises HiggsError."""
    with write_errors(path):
        write_whole(path, data)


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors as a HiggsError that names the file or folder, and the free space where there is little."""
    try:
        yield
    except OSError as error:
        reason, free = str(error.strerror or error).rstrip("."), _free(path)
        if error.errno in _FULL or free < _LITTLE:
            remedy = f"Only {free / 1e6:,.0f} MB are free there. Free some space, or choose another folder."
        else:
            remedy = "Choose a folder you can write to, and close programs that have the file open."
        raise HiggsError(f"{path} could not be written: {reason}. {remedy}") from error


@contextlib.contextmanager
def sole_writer(folder: Path, file: str) -> Iterator[None]:
    """Hold a folder for one run, by a lock on a file below it; what killed runs left in both places is removed.

    Raises HiggsError if another run holds the folder.
    """
    with contextlib.ExitStack() as stack:
        with write_errors(folder):
            if not stack.enter_context(lock(folder / file)):
                raise HiggsError(
                    f"Another run is writing to {folder}. Wait until it finishes, or choose another folder."
                )
            for left in (*folder.glob(UNFINISHED), *(folder / file).parent.rglob(UNFINISHED)):
                left.unlink(missing_ok=True)
        yield


def _free(path: Path) -> float:
    """Bytes that are free on a path's disk."""
    place = next((folder for folder in path.absolute().parents if folder.is_dir()), path)
    try:
        return shutil.disk_usage(place).free
    except OSError:  # the disk has gone
        return math.inf
