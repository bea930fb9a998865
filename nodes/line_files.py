"""The sound files of Higgs Lines in a folder, and lines.json, which says what each was made of. Knows no sound."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..engine import HiggsError, LinesRow, write_whole
from .portable_names import portable_parts

LIST = "lines.json"
_FORMAT = "higgs-tts-lines"


def file_name(row: LinesRow, take: int, takes: int) -> str:
    """What a row's file is called, below the folder. Raises HiggsError for an id that no file can have."""
    parts = portable_parts(row.id)
    if not parts:
        raise HiggsError(
            f"row {row.number}: the id {row.id!r} cannot be the name of a file. Use letters and digits, with / for a "
            "folder."
        )
    return "/".join(parts) + (f"_{take}.wav" if takes > 1 else ".wav")


def subtitles_of(file: str) -> str:
    """The SRT file beside a sound file."""
    return file.removesuffix(".wav") + ".srt"


def look(folder: Path) -> list:
    """[name, bytes, time] of lines.json and each file that it lists: differs where one of them has gone or changed."""
    names = [LIST, *LineFiles(folder).listed]
    return [[name, *_stat(folder / name)] for name in names]


class LineFiles:
    """What lies in a folder. `damage` says what is wrong with its lines.json, which then counts as absent."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.damage = ""
        self.listed: dict[str, tuple[str, int]] = {}  # file -> (fingerprint of what it was made of, bytes)
        try:
            self.listed = _read(folder / LIST)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            self.damage = f"{LIST} in {folder} cannot be read ({error}), so all lines were spoken again."

    def has(self, file: str, fingerprint: str) -> bool:
        """Whether the file is there as it was written, made of just that."""
        known, size = self.listed.get(file, ("", -1))
        return known == fingerprint and _stat(self.folder / file)[:1] == [size]

    def others(self, files: Iterable[str]) -> list[str]:
        """Files that were written here and are none of these."""
        return sorted(file for file in self.listed.keys() - {*files} if (self.folder / file).is_file())

    def write(self, files: dict[str, tuple[str, bytes]]) -> None:
        """Writes file -> (fingerprint, data), each whole or not at all. Raises HiggsError where one cannot be written.

        The list forgets them before and knows them after: where that stops in between, they are made again.
        """
        if self.listed.keys() & files.keys():
            self.listed = {file: entry for file, entry in self.listed.items() if file not in files}
            self._write_list()
        for file, (fingerprint, data) in files.items():
            _write(self.folder / file, data)
            self.listed[file] = fingerprint, len(data)
        self._write_list()

    def _write_list(self) -> None:
        entries = {file: {"fingerprint": known, "bytes": size} for file, (known, size) in sorted(self.listed.items())}
        text = json.dumps({"format": _FORMAT, "files": entries}, indent=1, ensure_ascii=False)
        _write(self.folder / LIST, text.encode())


def _read(path: Path) -> dict[str, tuple[str, int]]:
    """Raises ValueError for what is no such list."""
    held = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(held, dict) or held.get("format") != _FORMAT or not isinstance(held.get("files"), dict):
        raise ValueError("it is not a list of lines")
    entries = {}
    for file, entry in held["files"].items():
        if not isinstance(entry, dict) or not portable_parts(file):
            raise ValueError(f"{file} has no entry that makes sense")
        known, size = entry.get("fingerprint"), entry.get("bytes")
        if not isinstance(known, str) or not isinstance(size, int):
            raise ValueError(f"{file} has no entry that makes sense")
        entries[file] = known, size
    return entries


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise HiggsError(
            f"{path} could not be written: {error.strerror or error}. Choose a folder that can be written to, and "
            "close programs that have the file open."
        ) from error


def _stat(path: Path) -> list[int]:
    """[bytes, time of the last change], or nothing where there is no such file."""
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []
