"""State of a training between two trials, from which the next run goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save as safetensors_bytes

from ..files.file_list import write_file
from ..files.tensors import read_tensors

NUMBERS = ("numbers", "first", "second")


@dataclass
class RunState:
    """Steps done, the adapter's numbers and AdamW's moments after them, and what was heard so far.

    best: rank of the adapter that was kept, empty if none was, and best_strength the one to use it with. untouched: the
    trial of the model without an adapter. history: one entry per trial, with its step and losses, and its "trials", one
    per strength. listened: seconds that they took. renamed: a warning that earlier files were renamed.
    """

    fingerprint: str
    step: int = 0
    best_step: int = 0
    best_strength: float = 1.0
    best: list[float] = field(default_factory=list)
    untouched: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    listened: float = 0.0
    renamed: str = ""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # NUMBERS -> fp32 on the host; empty at the start

    def keep_best(self, strength: float, rank: list[float]) -> bool:
        """Note a trial after the last step as the best one, if it is."""
        if self.best and rank >= self.best:
            return False
        self.best, self.best_step, self.best_strength = rank, self.step, strength
        return True

    def write(self, path: Path) -> None:
        """Write the state. Raises HiggsError if that fails."""
        held = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "tensors"}
        write_file(path, safetensors_bytes(self.tensors, {"state": json.dumps(held)}))


def read_state(path: Path, fingerprint: str) -> RunState:
    """Return the state in a file, or a new one if there is none of this training."""
    if path.is_file():
        try:
            tensors, metadata = read_tensors(path)
            held = json.loads(metadata["state"])
            if held["fingerprint"] == fingerprint and tensors.keys() == {*NUMBERS}:
                return RunState(**held, tensors=tensors)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):  # damaged: begin anew
            pass
    return RunState(fingerprint)
