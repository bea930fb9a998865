"""What runs on a GPU of the cluster, and what is told of it. Knows no Ray."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..config import EngineConfig
from ..crew import Crew, Done, Stage, TooSmall
from ..engine import Engine
from ..sequence import Sequence
from ..voice.clip import Wave
from ..voice.voice import Voice


class About(NamedTuple):
    """What a worker is: its model's fingerprint, what sort of device it has, and which process of which machine."""

    fingerprint: str
    kind: str
    machine: str
    process: int


class Said(NamedTuple):
    """A job of its part, by number, with what was decoded of a sequence, and its sound [n]."""

    number: int
    spoken: Sequence | None
    wav: torch.Tensor


class UnderWay(NamedTuple):
    """Frames of what it has not sent."""

    frames: int


class Ended(NamedTuple):
    """All of its part is sent, and how it was decoded."""

    how: str
    notes: tuple[str, ...]
    peak: int


class Unfit(NamedTuple):
    """Its device has no room, and why."""

    why: str


class Lost(NamedTuple):
    """It has died, or its machine has. Told of it, not by it."""

    why: str


Told = Said | UnderWay | Ended | Unfit | Lost


class Worker:
    """An engine that decodes parts of stages."""

    def __init__(self, config: EngineConfig):
        self._engine = Engine(config)

    def open(self) -> About:
        """Loads the model, unless that has been done. Raises HiggsError as `Engine.open` does."""
        self._engine.open()
        return About(self._engine.fingerprint, self._engine.kind, platform.node(), os.getpid())

    @property
    def _where(self) -> str:
        return f"The {self._engine.kind} of {platform.node()}"

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None, name: str) -> Voice:
        """As `Engine.encode_voice`."""
        return self._engine.encode_voice(wav, sample_rate, transcript, name)

    def decode(self, part: Stage) -> Iterator[Told]:
        """What is done of a part, as it is done. Raises HiggsError where others would fail as well."""
        numbers = {job: number for number, job in enumerate(part.jobs)}
        try:
            with Crew([self._engine], part) as crew:
                for done in crew:
                    if done is not None:
                        yield _told(numbers[done.job], done)
                    yield UnderWay(crew.frames)
        except TooSmall as error:
            yield Unfit(f"{self._where} {error}")
        except torch.cuda.OutOfMemoryError:
            yield Unfit(f"{self._where} ran out of memory")
        else:
            (desk,) = crew.desks
            yield Ended(desk.how, desk.notes, desk.peak)


def _told(number: int, done: Done) -> Said:
    if done.spoken is not None:
        done.spoken.codes = [torch.cat(done.spoken.codes)]  # hundreds of small tensors, to be sent as one
    return Said(number, done.spoken, done.wav)
