"""The sound files of Higgs Lines in a folder, and lines.json, which says what each was made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...engine import FileList, HiggsError, LinesRow, file_stamp, write_file
from ..comfy.portable_names import portable_parts

LIST = "lines.json"
_FORMAT = "higgs-tts-lines"


def file_name(row: LinesRow, take: int, takes: int) -> str:
    """Name of a row's file below the folder. Raises HiggsError for an id that no file can have."""
    parts = portable_parts(row.id)
    if not parts:
        raise HiggsError(
            f"row {row.number}: the id {row.id[:80]!r} cannot be used as a file name. Use letters and digits, with / "
            "for subfolders."
        )
    return "/".join(parts) + (f"_{take}.wav" if takes > 1 else ".wav")


def subtitles_of(file: str) -> str:
    """The SRT file beside a sound file."""
    return file.removesuffix(".wav") + ".srt"


def look(folder: Path) -> list:
    """[name, bytes, time] of lines.json and each file that it lists: differs where one of them has gone or changed."""
    names = [LIST, *LineFiles(folder).listed]
    return [[name, *file_stamp(folder / name)] for name in names]


class LineFiles(FileList):
    """Files of Higgs Lines in a folder."""

    def __init__(self, folder: Path):
        super().__init__(folder, LIST, _FORMAT)
        odd = next((file for file in self.listed if not portable_parts(file)), None)
        if odd is not None:
            self.listed, self.damage = {}, f"{LIST} in {folder} has {odd}, so all files were made again."

    def others(self, files: Iterable[str]) -> list[str]:
        """Files that were written here and are none of these."""
        return sorted(file for file in self.listed.keys() - {*files} if (self.folder / file).is_file())

    def put(self, files: dict[str, tuple[str, bytes]]) -> None:
        """Writes file -> (fingerprint, data), each whole or not at all. Raises HiggsError where that cannot be done;
        the files written by then are listed.
        """
        self.forget(files)
        try:
            for file, (fingerprint, data) in files.items():
                write_file(self.folder / file, data)
                self.listed[file] = fingerprint, len(data)
        finally:
            self.write()
