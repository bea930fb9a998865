"""Store of spoken sequences, one small file each, from which a book resumes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..core.sequence import Sequence
from ..files.file_list import write_file
from ..speech.kept_codes import key_of

_FORMAT = "higgs-tts-sequence"  # -> how it ended; a single entry, since safetensors writes several in any order
_ENDED, _CUT = "ended", "cut"


class SpokenSequences:
    """A SequenceStore in a folder. File names are fingerprints of all that the codes depend on.

    fingerprint: the model's. Unreadable files count as missing. reused, damaged: number of files so far.
    """

    def __init__(self, folder: Path, fingerprint: str):
        self._folder, self._fingerprint = folder, fingerprint.encode()
        self._filled: set[Path] = set()
        self.damaged = 0

    @property
    def reused(self) -> int:
        return len(self._filled)

    def fill(self, sequence: Sequence) -> bool:
        """Complete a sequence that was spoken before. False if it was not."""
        path = self._path(sequence)
        if not path.is_file():
            return False
        try:
            with safe_open(path, framework="pt") as file:
                metadata, codes = file.metadata() or {}, file.get_tensor("codes").long()
        except (SafetensorError, OSError):
            self.damaged += 1
            return False
        sequence.fill(codes, metadata.get(_FORMAT) == _ENDED)
        self._filled.add(path)
        return True

    def keep(self, asked: Sequence, spoken: Sequence) -> None:
        """Save a spoken sequence. Raises HiggsError if it cannot be written."""
        path = self._path(asked)
        if path in self._filled:  # loaded from there
            return
        codes = torch.cat(spoken.codes).to(torch.int16)
        data = save({"codes": codes}, {_FORMAT: _ENDED if spoken.ended else _CUT})
        write_file(path, data)

    def _path(self, sequence: Sequence) -> Path:
        name = hashlib.sha256(self._fingerprint + key_of(sequence)).hexdigest()
        return self._folder / name[:2] / f"{name}.safetensors"
