"""A chunk while it is spoken, and the sequences that speak it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..core.sequence import Sequence
from ..prompt.plan import Chunk
from .attempts import Attempts


@dataclass(eq=False)
class Take:
    """A sequence of a chunk while it is decoded."""

    frames: int  # as counted in the progress
    remaining: int  # frames still expected, as counted in the progress
    cleared: int | None = None  # samples that a listener may hear; None: all
    _wavs: list[torch.Tensor] = field(default_factory=list)

    def hear(self, wav: torch.Tensor) -> None:
        if len(wav):
            self._wavs.append(wav)

    def forget(self) -> None:
        self._wavs = []

    def wav(self) -> torch.Tensor:
        """Return the audio so far, [n] float32."""
        if len(self._wavs) > 1:
            self._wavs = [torch.cat(self._wavs)]
        return self._wavs[0] if self._wavs else torch.empty(0)


@dataclass(eq=False)
class ChunkSpeech:
    chunk: Chunk
    place: int
    leads: bool  # see Sequence
    attempts: Attempts | None = None  # set once its sequence is built
    take: Take | None = None  # the attempt under way
    retakes: dict[int, int] = field(default_factory=dict)  # sentence -> how often it is still to be taken again

    @property
    def spoken(self) -> Sequence | None:
        return self.attempts.kept if self.attempts else None
