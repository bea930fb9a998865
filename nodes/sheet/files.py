"""Sound files of Higgs Lines in a folder, and lines.json, which records what each was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from ...engine import FileList, HiggsError, LinesRow, file_stamp, portable_parts, read_whole, write_file
from ..comfy import audio

LIST = "lines.json"
KINDS = ("wav", "flac", "mp3", "ogg")
_FORMAT = "higgs-tts-lines"


def file_name(row: LinesRow, take: int, takes: int, kind: str = KINDS[0]) -> str:
    """Return a row's file name, below the folder, for a kind of KINDS. Raises HiggsError if the id cannot be one."""
    parts = portable_parts(row.id)
    if not parts:
        raise HiggsError(
            f"row {row.number}: the id {row.id[:80]!r} cannot be used as a file name. Use letters and digits, with / "
            "for subfolders."
        )
    return "/".join(parts) + (f"_{take}" if takes > 1 else "") + f".{kind}"


def subtitles_of(file: str) -> str:
    """Return the SRT file beside a sound file."""
    return file.rpartition(".")[0] + ".srt"


def look(folder: Path) -> list:
    """Return [name, bytes, time] of lines.json and each file in it. Changes if a file is deleted or modified."""
    names = [LIST, *LineFiles(folder).listed]
    return [[name, *file_stamp(folder / name)] for name in names]


class LineFiles(FileList):
    """The record of files in a folder."""

    def __init__(self, folder: Path):
        super().__init__(folder, LIST, _FORMAT)
        self.changed: list[str] = []  # warnings of `keep_changed`
        odd = next((file for file in self.listed if not portable_parts(file)), None)
        if odd is not None:
            self.listed, self.damage = {}, f"{LIST} in {folder} has {odd}, so all files were made again."

    def seconds(self, file: str) -> float:
        """Return the length of a listed sound file."""
        return audio.seconds_of(self.folder / file, self.listed[file][1])

    def others(self, files: Iterable[str]) -> list[str]:
        """Return files from earlier runs that are not in `files`."""
        return sorted(file for file in self.listed.keys() - {*files} if (self.folder / file).is_file())

    def keep_renamed(self, planned: Mapping[str, str]) -> bool:
        """Copy files, with their subtitles, to where their rows have new names. True if there were any.

        planned: file -> fingerprint, all of one kind. A file in its place is no other row's: without a voice, equal
        rows differ.
        """
        kind = PurePath(next(iter(planned), "")).suffix
        there = {file for file, fingerprint in planned.items() if self.has(file, fingerprint)}
        spare: dict[str, list[str]] = {}  # by fingerprint
        for file, (fingerprint, _) in sorted(self.listed.items()):
            if file.endswith(kind) and file not in there and self.has(file, fingerprint):
                spare.setdefault(fingerprint, []).append(file)
        made: dict[str, tuple[str, bytes]] = {}
        notes: dict[str, Any] = {}
        for file in [file for file, fingerprint in planned.items() if file not in there and fingerprint in spare]:
            if sources := spare[planned[file]]:
                with contextlib.suppress(OSError):  # then it is spoken again
                    made |= self._renamed(source := sources.pop(0), file)
                    notes[file] = self.notes.get(source)
        if made:
            self.put(made, notes)
        return bool(made)

    def _renamed(self, old: str, new: str) -> dict[str, tuple[str, bytes]]:
        """Return what `put` writes for a new name. Nothing if subtitles there would be of another sound."""
        pairs = {new: old, subtitles_of(new): subtitles_of(old)}
        pairs = {name: source for name, source in pairs.items() if source in self.listed or name in self.listed}
        if not all(source in self.listed for source in pairs.values()):
            return {}
        return {
            name: (self.listed[source][0], read_whole(self.folder / source, self.listed[source][1]))
            for name, source in pairs.items()
        }

    def put(self, files: dict[str, tuple[str, bytes]], notes: Mapping[str, Any]) -> None:
        """Write file -> (fingerprint, data), each whole or not at all. notes: file -> its note. Raises HiggsError.

        Files written before a failure are recorded.
        """
        self.changed += self.keep_changed(files)
        self.forget(files)
        try:
            for file, (fingerprint, data) in files.items():
                write_file(self.folder / file, data)
                self.listed[file] = fingerprint, len(data)
                self.notes |= {file: notes[file]} if file in notes else {}
        finally:
            self.write()
