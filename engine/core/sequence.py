"""A sequence: one chunk of text from its prompt to its codes. `prompt/` makes it, a scheduler fills it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from .config import SamplingParams


class Bounds(NamedTuple):
    """Bounds that speech of a text lies within, unless something is wrong with it."""

    shortest: float = 0.0  # frames
    longest: float = math.inf  # frames
    silence: float = math.inf  # seconds of it at a stretch


@dataclass(eq=False)
class Sequence:
    """A prompt, what it is decoded with, and what has been decoded of it.

    ids: [P], one token a position. audio: (start, delayed codes int64 [n, K]) spans whose code embeddings replace the
    tokens' at start..start+n; exactly these positions are audio positions. v2's last span is the column that opens
    speech, at the last position. warnings: what was left out of the text, in plain words. prefix: how many ids stand
    before the text to speak; they depend on voice, scene and family alone, and no span crosses their end.
    """

    ids: list[int]
    audio: tuple[tuple[int, torch.Tensor], ...] = ()
    warnings: tuple[str, ...] = ()
    prefix: int = 0
    text: str = ""
    voice: object | None = None  # a Voice
    params: SamplingParams = field(default_factory=SamplingParams)  # the seed among them
    index: int = 0  # its place in the request; part of the noise's counter, so that sequences of one seed differ
    expected: int = 0  # frames it takes, by estimate
    budget: int = 0  # frames that its prompt leaves room for in the context
    bounds: Bounds = Bounds()
    caller: int = 0  # whose it is: a free row goes to the caller with the fewest
    listened: bool = False  # whether somebody waits for its first sound

    num_generated: int = field(default=0, init=False)  # step outputs that the host has read
    num_frames: int = field(default=0, init=False)  # whole frames in `codes`
    codes: list[torch.Tensor] = field(default_factory=list, init=False)  # int64 [t, K] each, in order
    pending: torch.Tensor | None = field(default=None, init=False)  # step outputs [n, K] that are not whole frames yet
    finished: bool = field(default=False, init=False)  # no more codes come
    ended: bool = field(default=False, init=False)  # finished by itself, not at a limit
    error: BaseException | None = field(default=None, init=False)  # why it finished before its end

    def __len__(self) -> int:
        """Positions of the prompt."""
        return len(self.ids)

    @property
    def remaining(self) -> int:
        """Frames still to come, by estimate."""
        return 0 if self.finished else max(0, self.expected - self.num_frames)

    def fill(self, codes: torch.Tensor, ended: bool) -> None:
        """Finish it with codes [T, K] that were decoded elsewhere, or before."""
        self.codes, self.num_frames = [codes], len(codes)
        self.finished, self.ended = True, ended

    def clear(self) -> None:
        """Forget what was decoded, so that it can be decoded from the start."""
        self.codes, self.pending = [], None
        self.num_generated = self.num_frames = 0


def next_fair(waiting: deque[Sequence], running: Iterable[Sequence]) -> Sequence:
    """Take out of `waiting` the first sequence of the caller that has the fewest among `running`."""
    counts = Counter(sequence.caller for sequence in running)
    chosen = min(waiting, key=lambda sequence: counts[sequence.caller])
    waiting.remove(chosen)
    return chosen
