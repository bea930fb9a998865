"""Spoken lines as codes, kept in one file."""

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
    """Coded clips, laid end to end.

    codes: int16 [F, K], not delayed; starts: int64 [n + 1], the first frame of each clip and the end of the last;
    texts: with tags; speakers: one per clip; words: int32 [W], the millisecond in its clip at which each word begins;
    word_starts: int64 [n + 1], like `starts`, for `words`. A clip without words has no known word times.
    """

    codes: torch.Tensor
    starts: torch.Tensor
    texts: tuple[str, ...]
    speakers: tuple[str, ...]
    words: torch.Tensor
    word_starts: torch.Tensor

    def __post_init__(self):
        count = len(self.texts)
        assert len(self.speakers) == count and len(self.starts) == len(self.word_starts) == count + 1
        assert int(self.starts[0]) == 0 and int(self.starts[-1]) == len(self.codes)
        assert int(self.word_starts[-1]) == len(self.words)

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def join(
        cls,
        codes: Sequence[torch.Tensor],
        texts: Sequence[str],
        speakers: Sequence[str],
        words: Sequence[Sequence[int]] | None = None,
    ) -> Clips:
        """Join the codes [T, K] of each clip. words: the milliseconds at which its words begin."""
        words = words or [()] * len(texts)
        flat = torch.tensor([start for found in words for start in found], dtype=torch.int32)
        joined = torch.cat(list(codes)).to("cpu", torch.int16)
        return cls(joined, _bounds(codes), tuple(texts), tuple(speakers), flat, _bounds(words))

    @classmethod
    def all(cls, lots: Sequence[Clips]) -> Clips:
        """Join several lots."""
        codes, words = torch.cat([lot.codes for lot in lots]), torch.cat([lot.words for lot in lots])
        texts = tuple(text for lot in lots for text in lot.texts)
        speakers = tuple(speaker for lot in lots for speaker in lot.speakers)
        starts, word_starts = (
            torch.cat([torch.zeros(1, dtype=torch.int64), *(bounds.diff() for bounds in found)]).cumsum(0)
            for found in ([lot.starts for lot in lots], [lot.word_starts for lot in lots])
        )
        return cls(codes, starts, texts, speakers, words, word_starts)

    def save(self, path: Path | str) -> None:
        """Write the file, whole or not at all."""
        path = Path(path)
        spoken = json.dumps({"texts": self.texts, "speakers": self.speakers})
        tensors = {name: getattr(self, name) for name in _TENSORS}
        save_file(tensors, path.with_suffix(".part"), metadata={"clips": spoken})
        path.with_suffix(".part").replace(path)

    @classmethod
    def load(cls, path: Path | str) -> Clips:
        with safe_open(path, framework="pt") as file:
            spoken = json.loads(file.metadata()["clips"])
            tensors = {name: file.get_tensor(name) for name in _TENSORS}
        return cls(texts=tuple(spoken["texts"]), speakers=tuple(spoken["speakers"]), **tensors)


_TENSORS = ("codes", "starts", "words", "word_starts")


def _bounds(parts: Sequence) -> torch.Tensor:
    """Return int64 [n + 1]: the start of each part when laid end to end, and the end of the last."""
    return torch.tensor([0, *map(len, parts)], dtype=torch.int64).cumsum(0)
