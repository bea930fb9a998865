"""Spoken lines as codes, and the one file that keeps them. Knows no codec, no voice and no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


@dataclass(frozen=True, eq=False)
class Clips:
    """codes: int16 [F, N], all clips one after another, not delayed; starts: int64 [n + 1], the first frame of each
    clip and the end of the last; texts: what each says, with tags; speakers: who says it."""

    codes: torch.Tensor
    starts: torch.Tensor
    texts: tuple[str, ...]
    speakers: tuple[str, ...]

    def __post_init__(self):
        count = len(self.texts)
        assert len(self.speakers) == count and len(self.starts) == count + 1
        assert int(self.starts[0]) == 0 and int(self.starts[-1]) == len(self.codes)

    def __len__(self) -> int:
        return len(self.texts)

    def frames(self, clip: int) -> int:
        return int(self.starts[clip + 1] - self.starts[clip])

    def codes_of(self, clip: int) -> torch.Tensor:
        """int16 [T, N] of one clip."""
        return self.codes[int(self.starts[clip]) : int(self.starts[clip + 1])]

    @classmethod
    def join(cls, codes: Sequence[torch.Tensor], texts: Sequence[str], speakers: Sequence[str]) -> Clips:
        """From the codes [T, N] of each clip."""
        lengths = torch.tensor([0, *(len(clip) for clip in codes)], dtype=torch.int64)
        return cls(torch.cat(list(codes)).to("cpu", torch.int16), lengths.cumsum(0), tuple(texts), tuple(speakers))

    def save(self, path: Path | str) -> None:
        spoken = json.dumps({"texts": self.texts, "speakers": self.speakers})
        save_file({"codes": self.codes, "starts": self.starts}, path, metadata={"clips": spoken})

    @classmethod
    def load(cls, path: Path | str) -> Clips:
        with safe_open(path, framework="pt") as file:
            spoken = json.loads(file.metadata()["clips"])
            codes, starts = file.get_tensor("codes"), file.get_tensor("starts")
        return cls(codes, starts, tuple(spoken["texts"]), tuple(spoken["speakers"]))
