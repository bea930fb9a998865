"""Store of spoken sequences, one small file each, from which a book resumes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..core.codes import CODEBOOK_SIZE
from ..core.config import FRAME_SAMPLES
from ..core.sequence import Sequence
from ..files.file_list import write_file
from ..speech.kept_codes import key_of

# -> how it ended, and a digest of the codes; a single entry, since safetensors writes several in any order.
_FORMAT = "higgs-tts-sequence"
_MOST_VALUES = 1 << 26  # codes, or samples of a server's speech
_ENDED, _CUT = "ended", "cut"


def _read(path: Path) -> tuple[torch.Tensor, bool]:
    """Return a file's codes and whether they ended by themselves. Raises ValueError if they are not as written."""
    with safe_open(path, framework="pt") as file:
        shape = file.get_slice("codes").get_shape()
        if len(shape) != 2 or not 0 < shape[1] <= FRAME_SAMPLES or shape[0] * shape[1] > _MOST_VALUES:
            raise ValueError("the shape")
        codes, (ended, _, digest) = file.get_tensor("codes"), (file.metadata() or {}).get(_FORMAT, "").partition(" ")
    if codes.dtype != torch.int16 or ended not in (_ENDED, _CUT) or digest != _digest(codes):
        raise ValueError("the digest")
    is_sound = shape[1] == FRAME_SAMPLES  # a server's speech has no codes
    if codes.numel() and not is_sound and not 0 <= int(codes.min()) <= int(codes.max()) < CODEBOOK_SIZE:
        raise ValueError("the range")
    return codes, ended == _ENDED


def _digest(codes: torch.Tensor) -> str:
    return hashlib.sha256(repr(tuple(codes.shape)).encode() + codes.numpy().tobytes()).hexdigest()


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
            codes, ended = _read(path)
        except (SafetensorError, OSError, ValueError):
            self.damaged += 1
            return False
        sequence.fill(codes.long(), ended)
        self._filled.add(path)
        return True

    def keep(self, original: Sequence, spoken: Sequence) -> None:
        """Save a spoken sequence. Raises HiggsError if it cannot be written."""
        path = self._path(original)
        if path in self._filled:  # loaded from there
            return
        codes = torch.cat(spoken.codes).to(torch.int16)
        data = save({"codes": codes}, {_FORMAT: f"{_ENDED if spoken.ended else _CUT} {_digest(codes)}"})
        write_file(path, data)

    def _path(self, sequence: Sequence) -> Path:
        name = hashlib.sha256(self._fingerprint + key_of(sequence)).hexdigest()
        return self._folder / name[:2] / f"{name}.safetensors"
