"""Recordings of a voice in a folder, and the transcripts that lie beside them."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

from ..core.errors import HiggsError, shown_name
from ..files.plain_text import read_plain_text
from ..prompt.cues import CueTurns, read_cues
from ..voice.clip import CLIP_SUFFIXES, FILM_SUFFIXES, transcript_of

SOUNDS = (*CLIP_SUFFIXES, *FILM_SUFFIXES)
_SUBTITLES = (".srt", ".vtt", ".SRT", ".VTT")
_FILE_COLUMNS = ("file", "file_name", "audio", "audio_file", "path", "wav", "id", "name", "clip")
_TEXT_COLUMNS = ("text", "transcript", "transcription", "sentence", "normalized_text")
_DELIMITERS = ("|", "\t", ";", ",")
_LONGEST, _GAP, _MARGIN = 12.0, 1.0, 0.1  # seconds of cues joined to a clip, between two of them, and around a clip


@dataclass(frozen=True)
class Recording:
    """A clip to learn: a sound file or part of one. text: empty if nobody has written it down.

    span: (start, stop) in seconds, or None for all of the file.
    """

    name: str  # for messages
    path: Path
    text: str = ""
    span: tuple[float, float] | None = None


def find_recordings(place: Path) -> tuple[list[Recording], dict[str, str]]:
    """Return the clips in a folder and its subfolders, or in one file, and file -> why it is left out.

    A clip's words are in a table (metadata.csv of LJSpeech, or any CSV with columns such as file and text), in a .txt
    beside it, or in an .srt or .vtt beside it, by whose cues the file is cut. Raises HiggsError if there is no sound
    file, or a table or text cannot be read.
    """
    if not place.exists():
        raise HiggsError(f"{place} does not exist. Give a folder with recordings of one voice, or one sound file.")
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [path for path in files if not path.name.startswith(".")]  # macOS leaves a ._name beside each file
    sounds = [path for path in files if path.suffix.lower() in SOUNDS]
    if not sounds:
        raise HiggsError(f"{place} holds no sound file. Put recordings there, such as .wav, .flac or .mp3 files.")
    tables = {path: read_table(path) for path in files if path.suffix.lower() == ".csv"}
    rows: dict[str, list[_TableRow]] = {}
    for table, held in tables.items():
        for key, text in held:
            *folders, name = key.split("/")
            rows.setdefault(name, []).append(_TableRow(table, folders, text))
    recordings, refused = [], {}
    for path in sounds:
        name = str(path.relative_to(place)) if place.is_dir() else path.name
        text = _in_tables(path, rows) or transcript_of(path)[0]
        subtitles = next((file for end in _SUBTITLES if (file := path.with_suffix(end)).is_file()), None)
        if text or subtitles is None:
            recordings.append(Recording(name, path, " ".join(text.split())))
            continue
        try:
            recordings += _by_cues(name, path, subtitles)
        except HiggsError as error:
            refused[name] = f"{subtitles.name}: {error}"
    known = {key for path in sounds for key in _keys(path)}
    for table, held in tables.items():
        if missing := [key for key, _ in held if key.rpartition("/")[2] not in known]:
            refused[table.name] = f"{len(missing)} of its rows name no sound file here: {shown_name(missing[0])}"
    return recordings, refused


@dataclass(frozen=True)
class _TableRow:
    table: Path
    folders: list[str]  # of the file, as the row names it
    text: str


def _in_tables(path: Path, rows: Mapping[str, list[_TableRow]]) -> str:
    """Return the text of a sound file in tables: of several rows that name it, from the nearest table and folder.

    Raises HiggsError if that table has two texts for it.
    """

    def nearness(row: _TableRow) -> tuple[int, int, int]:
        shared = _shared(row.folders[::-1], path.parent.parts[::-1])
        return _shared(row.table.parent.parts, path.parent.parts), shared, -len(row.folders)

    for key in _keys(path):
        if named := [row for row in rows.get(key, ()) if row.text]:
            nearest = max(named, key=nearness)
            same = [row.text for row in named if (row.table, row.folders) == (nearest.table, nearest.folders)]
            if len(set(same)) > 1:
                raise HiggsError(f"{nearest.table} has two texts for {shown_name(key)}. Keep one of them.")
            return nearest.text
    return ""


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many parts two paths have in common from the start on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _keys(path: Path) -> tuple[str, str]:
    return _key(path.name), _key(path.stem)


def read_table(path: Path) -> list[tuple[str, str]]:
    """Return (file's name or stem, with folders if there are any; text) of each row of a CSV.

    Without known columns, the first and the last are taken. Raises HiggsError if rows have more columns than the first,
    or fewer without known columns, or if a quote is not closed.
    """
    if not (text := _read(path).strip()):
        return []
    first = text.splitlines()[0]
    delimiter = next((sign for sign in _DELIMITERS if sign in first), ",")
    quoting = csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL  # LJSpeech has quotes in its texts

    def parsed(strict: bool) -> list[list[str]]:
        lines = io.StringIO(text, newline="")
        return list(filter(None, csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=strict)))

    try:
        rows = parsed(strict=False)
        if long := next((row for row in rows if any("\n" in cell for cell in row)), None):
            try:
                rows = parsed(strict=True)
            except csv.Error as error:
                raise csv.Error(f"a quote in the row of {shown_name(long[0])} is not closed") from error
        names = [cell.strip().lower() for cell in rows[0]]
        files = [at for at, name in enumerate(names) if name in _FILE_COLUMNS]
        texts = [at for at, name in enumerate(names) if name in _TEXT_COLUMNS]
        # Without known columns and with commas in texts, the first row may be the one with most of them.
        least = 0 if (files and texts) or delimiter == "|" else len(names)
        if odd := next((row for row in rows if len(row) < least or any(map(str.strip, row[len(names) :]))), None):
            columns = f"{len(odd)} columns for {shown_name(odd[0])}, but {len(names)} in the first row"
            raise csv.Error(f"{columns}, so a text may contain {delimiter!r}")
    except csv.Error as error:
        raise HiggsError(f"{path} cannot be read as CSV ({error}). Save it again as CSV in UTF-8.") from error
    if not (files and texts):
        if len(names) < 2:
            raise HiggsError(f"{path} has one column. Give it the columns file and text.")
        return [(_key(row[0]), next(filter(None, map(str.strip, row[:0:-1])), "")) for row in rows if len(row) > 1]
    last = max(files[0], texts[-1])
    return [(_key(row[files[0]]), row[texts[-1]].strip()) for row in rows[1:] if len(row) > last]


def _key(cell: str) -> str:
    return unicodedata.normalize("NFC", cell.strip().replace("\\", "/"))  # macOS decomposes names


def _read(path: Path) -> str:
    try:
        return read_plain_text(path)[0]
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Save it again.") from error


def _by_cues(name: str, path: Path, subtitles: Path) -> list[Recording]:
    """Cut a recording by its subtitles. Cues that follow each other are joined."""
    sheet = read_cues(_read(subtitles), anyone=True)
    if len(sheet.speakers) > 1:
        raise HiggsError(f"it has several speakers: {', '.join(map(shown_name, sheet.speakers[:3]))}. Keep one's cues.")
    cues = [cue for cue in sheet.cues if cue.turns]
    groups: list[list[CueTurns]] = [[cue] for cue in cues[:1]]
    for before, cue in pairwise(cues):
        if cue.start - before.stop <= _GAP and cue.stop - groups[-1][0].start <= _LONGEST:
            groups[-1].append(cue)
        else:
            groups.append([cue])
    parts = []
    for group in groups:
        start, stop = max(0.0, group[0].start - _MARGIN), group[-1].stop + _MARGIN
        text = " ".join(turn.text for cue in group for turn in cue.turns)
        parts.append(Recording(f"{name} at {start:.1f} s", path, " ".join(text.split()), (start, stop)))
    return parts
