"""Read scripts, subtitles, pronunciations and covers from files, for the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.errors import HiggsError
from ..files.plain_text import read_plain_text
from ..files.whole_file import read_whole
from ..prompt.cues import CueSheet, read_cues
from ..prompt.dialogue import Dialogue, read_dialogue
from ..prompt.pronunciations import Pronunciations, read_pronunciations

_MOST_COVER = 20 << 20  # bytes


def dialogue_in(path: Path, pronunciations: Pronunciations, knows_tag: Callable[[str], bool]) -> Dialogue:
    """Read a script, respelled by the pronunciations. knows_tag: see `read_dialogue`.

    Raises HiggsError if the file cannot be read.
    """
    dialogue = read_dialogue(_read(path), knows_tag=knows_tag)
    return replace(dialogue, turns=pronunciations.respelled(dialogue.turns))


def cues_in(path: Path, anyone: bool, knows_tag: Callable[[str], bool]) -> CueSheet:
    """Read subtitles; see `read_cues`. Raises HiggsError if the file cannot be read."""
    text = _read(path, "an SRT or VTT file")
    try:
        return read_cues(text, anyone=anyone, knows_tag=knows_tag)
    except HiggsError as error:
        raise HiggsError(f"{path}: {error}") from error


def pronunciations_in(path: Path | None) -> Pronunciations:
    """Read a list of pronunciations, empty without a file. Raises HiggsError like `read_pronunciations`."""
    return Pronunciations() if path is None else read_pronunciations(_read(path), str(path))


def cover_in(path: Path | None) -> bytes | None:
    """Return the bytes of a picture, None without a file. Raises HiggsError if the file cannot be read."""
    try:
        return None if path is None else read_whole(path, _MOST_COVER)
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Choose a JPEG or PNG file.") from error


def _read(path: Path, kind: str = "a text file") -> str:
    """Return the text of a file. Doubts about its encoding are logged, and so told before speech."""
    try:
        return read_plain_text(path)[0]
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error}). Choose {kind}.") from error


def print_any_letter() -> None:
    """Escape letters from now on that the terminal, or a file on Windows, cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
