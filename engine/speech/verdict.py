"""The verdict on a spoken chunk: which of its words were not said once, and which sentences to speak again."""

from __future__ import annotations

from dataclasses import dataclass

DOUBTS = {  # kind -> what is wrong, for users
    "again": "{words} is said again",
    "missing": "{words} is not heard",
    "cut": "{words} is cut short",
    "added": "{words} is followed by sounds that are not in the text",
    "unsure": "{words} may be wrong",
}


@dataclass(frozen=True)
class Doubt:
    """Words of a chunk that were not said once, and where."""

    kind: str  # key of DOUBTS
    text: str
    words: tuple[int, int]  # the first, and the one after the last, of the chunk's words
    frames: tuple[int, int]  # start and stop in the chunk's codes


@dataclass(frozen=True)
class Passage:
    """Consecutive sentences to be spoken again, and the frames that say them so far."""

    sentences: tuple[int, int]  # the first, and the one after the last
    frames: tuple[int, int]
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True)
class Verdict:
    """What the check found in one chunk. method: "attention" or "whisper"."""

    method: str
    starts: tuple[int, ...]  # the first frame of each sentence
    passages: tuple[Passage, ...] = ()  # in order and apart
    fixed: int = 0  # frames that a listener has heard, and that stay
    heard: tuple[Doubt, ...] = ()  # doubts within them

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return *self.heard, *(doubt for passage in self.passages for doubt in passage.doubts)
