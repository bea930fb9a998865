"""Files of Higgs Lines as listed on the page, for comparing a row's takes by ear. Reads no audio."""

from __future__ import annotations

from pathlib import PurePath

from ..comfy import folders
from .files import LineFiles
from .plan import LinePlan, LineTake

MOST = 600  # listed files
_SAID = 80  # characters of a row's text
_MOST_SEED = (1 << 53) - 1  # larger integers are not exact in JavaScript
VOICELESS = "This speaker has no voice, so a new seed would change other rows too. Connect a voice."


def takes_of(planned: LinePlan, files: LineFiles) -> list[dict]:
    """Describe each existing file: its row, URL parts, seed, and why it cannot be kept, if so."""
    there = [take for take in planned.takes if files.has(take.file, take.fingerprint)]
    there.sort(key=lambda take: (take.row.number, take.number))
    return [_described(take, planned, files) for take in there[:MOST]]


def _described(take: LineTake, planned: LinePlan, files: LineFiles) -> dict:
    path = PurePath(files.folder.relative_to(folders.output()), take.file)
    seed = take.turn.seed or 0
    return {
        "id": take.row.id,
        "text": " ".join(take.row.text.split())[:_SAID],
        "file": take.file,
        "filename": path.name,
        "subfolder": path.parent.as_posix(),
        "version": take.fingerprint[:16],
        "seconds": round(files.seconds(take.file), 2),
        "seed": seed if seed <= _MOST_SEED else None,
        "own": take.row.seed == seed,
        "problem": "" if take.turn.speaker in planned.voices else VOICELESS,
    }
