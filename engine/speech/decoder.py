"""The seam between requests, which own text, and decoders, which turn sequences into codes and sound."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from ..core.sequence import Sequence
from ..voice.clip import Wave
from ..voice.voice import Voice


class Stage(NamedTuple):
    """Settings that decide the codes and the memory of a session, known before its first step."""

    rows: int  # sequences to decode at a time, at most; 0 where all of them come with their codes
    slots: int = 0  # positions of the KV cache that the longest of them takes
    alone: bool = False  # whether one sequence may be decoded by the runner of one row
    own_voices: int = 0  # voices whose prefixes no later session uses; 0 where all may be kept
    shared: bool = False  # whether another device decodes a part of it


class ReferenceClip(NamedTuple):
    """Sound [S] or [C, S] that a voice is made of, and what it says."""

    wav: Wave
    sample_rate: int
    transcript: str = ""


class Heard(NamedTuple):
    """News of one sequence, whose codes and counters are those so far."""

    sequence: Sequence
    wav: torch.Tensor  # samples [n] float32 on the host, which follow those heard before; may be empty
    is_last: bool = False  # nothing more comes: the codes are whole and so is the sound, or it has an error
    void: str = ""  # why what was heard of it before does not count; empty where it does

    @property
    def error(self) -> BaseException | None:
        """The error that ended this sequence alone; the others go on."""
        return self.sequence.error


class SessionReport(NamedTuple):
    """How a session has decoded."""

    how: str = ""  # kernels, executor and devices, in words for users
    notes: tuple[str, ...] = ()  # what users should know: a capture that failed, a device that was lost
    peak_bytes: int = 0  # of a GPU's memory


class Session(Protocol):
    """Decodes the sequences of one stage, or those of a server's callers for as long as there are any.

    Iterating yields what is new after every step, or an empty list when nothing came for a moment, and ends when all
    that was submitted is heard; it may be iterated again. Raises HiggsError and torch.OutOfMemoryError where nothing
    can go on. For one thread, but for `wake`.
    """

    @property
    def report(self) -> SessionReport: ...

    def submit(self, *sequences: Sequence) -> None:
        """Take sequences in. Of those that are finished already only the sound is made."""
        ...

    def drop(self, *sequences: Sequence) -> None:
        """Take sequences out: nothing more is heard of them, and their rows are free at the next step."""
        ...

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        """Make a voice of a clip, between two steps; errors as of `Engine.encode_voice`."""
        ...

    def wake(self) -> None:
        """Make the iteration yield soon. From any thread."""
        ...

    def __iter__(self) -> Iterator[list[Heard]]: ...


class Decoder(Protocol):
    """Turns sequences into codes and sound, one session at a time."""

    def session(self, stage: Stage) -> AbstractContextManager[Session]:
        """Take the memory that a stage needs, for the length of a `with`."""
        ...
