"""A sequence: one chunk of text from its prompt to its codes. `prompt/` builds it, a scheduler fills it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from .config import SamplingParams


class Bounds(NamedTuple):
    """Bounds for good speech of a text. Speech outside them is bad."""

    shortest: float = 0.0  # frames
    longest: float = math.inf  # frames
    silence: float = math.inf  # seconds of continuous silence


@dataclass(eq=False)
class Sequence:
    """Prompt, sampling parameters, and the codes decoded so far.

    ids: [P], one token per position.
    audio: (start, delayed codes int64 [n, K]) spans. Their code embeddings replace the token embeddings at
        start..start+n; only these positions are audio positions. v2's last span is the column that opens speech, at
        the last position.
    warnings: parts of the text that were left out, for users.
    prefix: number of ids before the text to speak. They depend only on voice, scene and family. No span crosses
        their end.
    """

    ids: list[int]
    audio: tuple[tuple[int, torch.Tensor], ...] = ()
    warnings: tuple[str, ...] = ()
    prefix: int = 0
    text: str = ""
    spoken_text: str = ""  # the text as the model says it
    voice: object | None = None  # a Voice
    scene: str | None = None  # as asked for
    params: SamplingParams = field(default_factory=SamplingParams)  # including the seed
    index: int = 0  # position in the request; part of the noise counter, so sequences with the same seed differ
    expected: int = 0  # estimated frames
    budget: int = 0  # frames that fit in the context after the prompt
    bounds: Bounds = Bounds()
    caller: int = 0  # owner; a free row goes to the caller with the fewest running sequences
    listened: bool = False  # True if a listener waits for its first sound
    place: int = 0  # of its chunk in the request, whose chunks are begun in this order
    leads: bool = False  # True if it is heard so soon that later chunks of its caller wait for it on a CPU
    checked: bool = False  # True if its words are to be checked once it is spoken

    num_frames: int = field(default=0, init=False)  # whole frames in `codes`
    codes: list[torch.Tensor] = field(default_factory=list, init=False)  # int64 [t, K] each, in order
    finished: bool = field(default=False, init=False)  # no more codes follow
    ended: bool = field(default=False, init=False)  # finished on its own, not at a limit
    error: BaseException | None = field(default=None, init=False)  # error that ended decoding early
    verdict: object | None = field(default=None, init=False)  # a Verdict; None if it was not checked

    def __len__(self) -> int:
        """Return the length of the prompt in positions."""
        return len(self.ids)

    @property
    def remaining(self) -> int:
        """Estimated number of frames left to decode."""
        return 0 if self.finished else max(0, self.expected - self.num_frames)

    def fill(self, codes: torch.Tensor, ended: bool) -> None:
        """Finish the sequence with codes [T, K] decoded elsewhere or earlier."""
        self.codes, self.num_frames = [codes], len(codes)
        self.finished, self.ended = True, ended

    def clear(self) -> None:
        """Drop all decoded codes so that the sequence can be decoded again from the start."""
        self.codes, self.num_frames = [], 0


def next_fair(waiting: Collection[Sequence], running: Iterable[Sequence]) -> Sequence:
    """Return a waiting sequence of the caller with the fewest running ones: of these the first in the text's order."""
    counts = Counter(sequence.caller for sequence in running)
    caller = min(waiting, key=lambda sequence: counts[sequence.caller]).caller
    return min((one for one in waiting if one.caller == caller), key=lambda one: one.place)
