"""Findings of the check in a kept file, as JSON for its manifest, so that later runs report them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .result import DoubtfulWords


def note_of(doubts: Sequence[DoubtfulWords], checked: Sequence[bool]) -> dict[str, Any]:
    """Return the note of a file. checked: True for each of its chunks whose words were checked."""
    return {"doubts": [asdict(doubt) for doubt in doubts], "checked": [*checked]}


def read_note(note: Any) -> tuple[list[DoubtfulWords], list[bool]]:
    """Return a note's doubts, and `checked`. A missing or damaged note counts as one chunk that was not checked."""
    try:
        doubts = [DoubtfulWords(**doubt) for doubt in note["doubts"]]
        "".join(map(str, doubts))  # fails now if it is damaged
        return doubts, [*map(bool, note["checked"])]
    except (AttributeError, KeyError, TypeError, ValueError):
        return [], [False]
