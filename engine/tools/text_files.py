"""Scripts, subtitles and lists of pronunciations from files, for the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.config import MOST_TEXT_BYTES
from ..core.errors import HiggsError
from ..files.plain_text import decode_text, doubts
from ..files.whole_file import read_whole
from ..prompt.cues import CueSheet, read_cues
from ..prompt.dialogue import Dialogue, read_dialogue
from ..prompt.pronunciations import Pronunciations, read_pronunciations


def dialogue_in(path: Path, said: Pronunciations, knows_tag: Callable[[str], bool]) -> Dialogue:
    """The script in a file, its words as they are to be said; knows_tag: see `read_dialogue`.

    Raises HiggsError for a file that cannot be read.
    """
    dialogue = read_dialogue(_read(path), knows_tag=knows_tag)
    return replace(dialogue, turns=tuple(replace(t, text=said.apply(t.text, t.speaker)) for t in dialogue.turns))


def cues_in(path: Path, anyone: bool, knows_tag: Callable[[str], bool]) -> CueSheet:
    """The subtitles in a file; see `read_cues`. Raises HiggsError for a file that cannot be read."""
    try:
        data = read_whole(path, MOST_TEXT_BYTES)
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error}). Choose an SRT or VTT file.") from error
    try:
        sheet = read_cues(decode_text(data), anyone=anyone, knows_tag=knows_tag)
    except HiggsError as error:
        raise HiggsError(f"{path}: {error}") from error
    return replace(sheet, warnings=(*sheet.warnings, *doubts(data, path.name)))


def pronunciations_in(path: Path | None) -> Pronunciations:
    """The list in a file; without one it is empty. Raises HiggsError as `read_pronunciations` does."""
    return Pronunciations() if path is None else read_pronunciations(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        text = read_whole(path, MOST_TEXT_BYTES).decode("utf-8-sig")  # Windows begins files with a mark
        return text.replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HiggsError(f"{path} cannot be read ({error}). Choose a text file in UTF-8.") from error


def print_any_letter() -> None:
    """From now on a letter that the terminal or a file on Windows has no code for is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
