"""Recordings in ComfyUI's input folder that Higgs Voice cuts its clip from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...engine import CLIP_SUFFIXES, FILM_SUFFIXES, HiggsError, read_clip
from ..comfy import folders

SUFFIXES = (*CLIP_SUFFIXES, *FILM_SUFFIXES)
LINKED = "the audio input"  # the choice of no file
LONGEST = 600.0  # seconds of a recording


def choices() -> list[str]:
    """Return the audio input, then the recordings in and below ComfyUI's input folder."""
    return [LINKED, *folders.files_in_input(SUFFIXES)]


def find_recording(name: object) -> Path:
    """Return the file of a recording. Raises HiggsError if there is none of that name."""
    path = folders.files_in_input(SUFFIXES).get(str(name).replace("\\", "/"))
    if path is None:
        raise HiggsError(
            f"there is no recording {str(name)[:80]!r} in ComfyUI's input folder. Put it there and press R, or choose "
            "another clip."
        )
    return path


def read_recording(name: object) -> tuple[np.ndarray, int]:
    """Read a recording as (wav [C, S], Hz). Raises HiggsError if it is missing, unreadable or too long."""
    return read_clip(find_recording(name), LONGEST)
