"""A team at one stage: each worker takes a part of what waits, and what a lost one has not sent waits again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..crew import Done, Job, Stage
from .worker import Ended, Said, Told, UnderWay, Unfit

if TYPE_CHECKING:
    from .team import Member, Team


class Shift:
    """Iterate for what is done, as of a `Crew`. Raises HiggsError as the workers do, and where none is left."""

    def __init__(self, team: Team, stage: Stage):
        self._team, self._stage = team, replace(stage, shared=len(team.members) > 1)
        self._waiting: deque[Job] = deque(stage.jobs)
        self._missing = set(stage.jobs)
        self.ends: dict[Member, tuple[str, Ended]] = {}  # kind of device, and how it decoded
        self.warnings: list[str] = []
        for member in team.members:  # of a stage that somebody broke off
            member.leave()

    @property
    def frames(self) -> int:
        """Frames of what is under way."""
        return sum(member.frames for member in self._team.members)

    def add(self, *jobs: Job) -> None:
        """More to do, after what waits."""
        self._missing.update(jobs)
        self._waiting.extend(jobs)

    def __iter__(self) -> Iterator[Done | None]:
        while self._missing or any(member.sending for member in self._team.members):
            self._hand_out()
            done = [self._take_in(*told) for told in self._team.look()]
            yield from done or [None]

    def _hand_out(self):
        """What waits to those who are idle, who leave to the others as much as they take."""
        size = math.ceil(len(self._waiting) / max(1, len(self._team.ready)))
        for member in self._team.ready:
            if member.is_idle and self._waiting:
                jobs = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
                member.take(replace(self._stage, jobs=jobs))

    def _take_in(self, member: Member, told: Told) -> Done | None:
        if isinstance(told, Said):
            job = member.part.pop(told.number)
            self._missing.remove(job)
            return Done(job, told.spoken, told.wav)
        if isinstance(told, UnderWay):
            member.frames = told.frames
        elif isinstance(told, Ended):
            assert member.about
            self.ends.setdefault(member, (member.about.kind, told))  # its largest part
        else:
            self._waiting.extend(member.leave())
            if isinstance(told, Unfit):
                self._team.dismiss(member, told.why)
            self.warnings.append(told.why)
        return None
