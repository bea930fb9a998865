"""What was made in a folder, and of what, as a list beside the files. Knows nothing of what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from .errors import HiggsError
from .whole_file import write_whole


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
            self.damage = f"{name} in {folder} cannot be read ({error}), so everything was made again."

    def has(self, file: str, fingerprint: str) -> bool:
        """Whether the file is there as it was written, made of just that."""
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
            raise ValueError("it is not a list of ours")
        entries = {}
        for file, entry in held["files"].items():
            known, size = (entry.get("fingerprint"), entry.get("bytes")) if isinstance(entry, dict) else (None, None)
            if not isinstance(known, str) or not isinstance(size, int):
                raise ValueError(f"{file} has no entry that makes sense")
            entries[file] = known, size
        return entries


def write_file(path: Path, data: bytes) -> None:
    """`write_whole` with an error for users."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> HiggsError:
    """What to say of a file that could not be written."""
    return HiggsError(
        f"{path} could not be written: {error.strerror or error}. Choose a folder that can be written to, and "
        "close programs that have the file open."
    )
