"""Manifest of generated files in a folder, with fingerprints of their inputs."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..core.config import MOST_JSON_BYTES
from ..core.errors import HiggsError, shown_name
from .plain_text import encodable
from .whole_file import UNFINISHED, lock, read_whole, write_whole

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
_MOST_NAME, _MOST_PATH = 255, 1000  # bytes of a name, as file systems have it; characters of a path below the folder
_MOST_ON_WINDOWS = 259  # characters of a whole path, unless the user has turned long paths on
_LITTLE = 100e6  # bytes; less free space is reported


class FileList:
    """Manifest: file -> (fingerprint of its input, bytes).

    notes: file -> what else is kept with it, as JSON. kind: value of "format", which tells it from other programs'
    files. damage: the error of an unreadable manifest, which then counts as missing.
    """

    def __init__(self, folder: Path, name: str, kind: str):
        self.folder, self.name, self._kind = folder, name, kind
        self.damage = ""
        self.listed: dict[str, tuple[str, int]] = {}
        self.notes: dict[str, Any] = {}
        try:
            self.listed = self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            self.damage = f"{name} in {folder} cannot be read ({error}), so all files were made again."

    def has(self, file: str, fingerprint: str) -> bool:
        """True if the file exists with its recorded size and was made from this input."""
        known, size = self.listed.get(file, ("", -1))
        path = self.folder / file
        return known == fingerprint and path.is_file() and path.stat().st_size == size

    def keep_changed(self, files: Iterable[str]) -> list[str]:
        """Rename files whose size is not the recorded one, which the user has edited. Returns a warning for each."""
        warnings = []
        for file in files:
            path = self.folder / file
            if file in self.listed and path.is_file() and path.stat().st_size != self.listed[file][1]:
                kept = next(place for place in names_beside(path, "changed") if not place.exists())
                with write_errors(kept):
                    path.replace(kept)
                warnings.append(f"{path} was changed after it was written, so it was kept as {kept.name}.")
        return warnings

    def forget(self, files: Iterable[str]) -> None:
        """Remove files from the manifest before they are rewritten, so that an interrupted run makes them again."""
        files = set(files)
        if self.listed.keys() & files:
            self.listed = {file: entry for file, entry in self.listed.items() if file not in files}
            self.notes = {file: note for file, note in self.notes.items() if file not in files}
            self.write()

    def write(self) -> None:
        """Write the manifest. Raises HiggsError if that fails."""
        entries: dict[str, dict[str, Any]] = {}
        for file, (known, size) in sorted(self.listed.items()):
            note = {"note": self.notes[file]} if file in self.notes else {}
            entries[file] = {"fingerprint": known, "bytes": size, **note}
        text = json.dumps({"format": self._kind, "files": entries}, indent=1, ensure_ascii=False)
        write_file(self.folder / self.name, text.encode())

    def _read(self) -> dict[str, tuple[str, int]]:
        """Read the manifest. Raises ValueError if it is not valid."""
        held = json.loads(read_whole(self.folder / self.name, MOST_JSON_BYTES))
        if not isinstance(held, dict) or held.get("format") != self._kind or not isinstance(held.get("files"), dict):
            raise ValueError("it was not written by this pack")
        entries = {}
        for file, entry in held["files"].items():
            known, size = (entry.get("fingerprint"), entry.get("bytes")) if isinstance(entry, dict) else (None, None)
            if not isinstance(known, str) or not isinstance(size, int) or isinstance(size, bool):
                raise ValueError(f"its entry for {shown_name(file)} is invalid")
            longest = max(len(part.encode("utf-8", "replace")) for part in file.split("/"))
            if longest > _MOST_NAME or len(file) > _MOST_PATH:
                raise ValueError(f"no file is called {shown_name(file)}")
            entries[file] = known, size
            if "note" in entry:
                self.notes[file] = entry["note"]
        return entries


def names_beside(path: Path, word: str) -> Iterator[Path]:
    """Yield candidate paths for a file that is kept beside its successor: name.WORD.suffix, name.WORD1.suffix, ..."""
    return (path.with_name(f"{path.stem}.{word}{number or ''}{path.suffix}") for number in itertools.count())


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises HiggsError if that fails."""
    with write_errors(path):
        write_whole(path, data)


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert OSErrors to a HiggsError that names the file or folder, and the free space if it is low."""
    try:
        yield
    except OSError as error:
        reason, free = str(error.strerror or error).rstrip("."), _free(path)
        if error.errno in _FULL or (free < _LITTLE and error.errno not in _REFUSED):
            size = f"{free / 1e6:,.0f} MB" if free >= 1e6 else f"{free / 1e3:,.0f} kB"
            little = f"Only {size} are" if free >= 1e3 else "No space is"
            remedy = f"{little} free there. Free some space, or choose another folder."
        elif sys.platform == "win32" and (length := len(os.path.abspath(path))) > _MOST_ON_WINDOWS:
            remedy = f"The path has {length} characters, and Windows takes {_MOST_ON_WINDOWS}. Choose a shorter one."
        else:
            remedy = "Choose a folder you can write to, and close programs that have the file open."
        raise HiggsError(f"{path} could not be written: {reason}. {remedy}") from error


@contextlib.contextmanager
def sole_writer(folder: Path, file: str) -> Iterator[None]:
    """Lock a folder for one run by a file below it, and remove partial files of killed runs.

    Raises HiggsError if another run holds the lock, or if safetensors could not read files there.
    """
    if encodable(str(folder)) != str(folder):
        raise HiggsError(f"The name of {folder} is not UTF-8. Rename it, or choose another folder.")
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
    """Return the free bytes on a path's disk."""
    place = next((folder for folder in path.absolute().parents if folder.is_dir()), path)
    try:
        return shutil.disk_usage(place).free
    except OSError:  # the disk is gone
        return math.inf
