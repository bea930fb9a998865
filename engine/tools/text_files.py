"""Scripts, subtitles and lists of pronunciations from files, for the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.errors import HiggsError
from ..files.plain_text import read_plain_text
from ..prompt.cues import CueSheet, read_cues
from ..prompt.dialogue import Dialogue, read_dialogue
from ..prompt.pronunciations import Pronunciations, read_pronunciations


def dialogue_in(path: Path, said: Pronunciations, knows_tag: Callable[[str], bool]) -> Dialogue:
    """The script in a file, its words as they are to be said; knows_tag: see `read_dialogue`.

    Raises HiggsError for a file that cannot be read.
    """
    text, doubts = _read(path)
    dialogue = read_dialogue(text, knows_tag=knows_tag)
    turns = tuple(replace(turn, text=said.apply(turn.text, turn.speaker)) for turn in dialogue.turns)
    return replace(dialogue, turns=turns, warnings=(*dialogue.warnings, *doubts))


def cues_in(path: Path, anyone: bool, knows_tag: Callable[[str], bool]) -> CueSheet:
    """The subtitles in a file; see `read_cues`. Raises HiggsError for a file that cannot be read."""
    text, doubts = _read(path, "an SRT or VTT file")
    try:
        sheet = read_cues(text, anyone=anyone, knows_tag=knows_tag)
    except HiggsError as error:
        raise HiggsError(f"{path}: {error}") from error
    return replace(sheet, warnings=(*sheet.warnings, *doubts))


def pronunciations_in(path: Path | None) -> Pronunciations:
    """The list in a file; without one it is empty. Raises HiggsError as `read_pronunciations` does."""
    return Pronunciations() if path is None else read_pronunciations(_read(path)[0], str(path))


def _read(path: Path, kind: str = "a text file") -> tuple[str, tuple[str, ...]]:
    try:
        return read_plain_text(path)
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error}). Choose {kind}.") from error


def print_any_letter() -> None:
    """From now on a letter that the terminal or a file on Windows has no code for is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
