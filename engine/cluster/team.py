"""The workers, as seen from where the book is written: hired, heard, lost and started anew."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ..config import EngineConfig
from ..crew import Job, Stage
from ..errors import HiggsError
from .worker import About, Lost, Told, Worker

_RESTARTS = 3  # of a worker that dies
_GATHER = 120.0  # seconds that a team waits for all of its workers before it begins with those who are there
_PATIENCE = 600.0  # seconds without any worker after which nobody waits any more
_LOOK = 0.2
_TOLD = 400  # characters of what Ray says of a death


@dataclass(eq=False)
class Member:
    """One worker. about: None while it does not run. opening, sending: what Ray has promised of it."""

    actor: Any
    opening: Any = None
    about: About | None = None
    sending: Any = None
    part: dict[int, Job] = field(default_factory=dict)  # what it has taken and not sent, by number
    frames: int = 0  # of what is under way

    @property
    def is_idle(self) -> bool:
        return self.about is not None and self.sending is None

    @property
    def name(self) -> str:
        """In words for users."""
        return f"The worker on {self.about.machine}, process {self.about.process}," if self.about else "A worker"

    def take(self, part: Stage) -> None:
        """Gives it something to do."""
        self.part, self.frames = dict(enumerate(part.jobs)), 0
        self.sending = self.actor.decode.options(num_returns="streaming").remote(part)

    def leave(self) -> list[Job]:
        """Its part ends -> what it has not sent."""
        given_back = list(self.part.values())
        self.part, self.sending, self.frames = {}, None, 0
        return given_back


class Team:
    """So many workers with so much of the cluster's resources each. Raises HiggsError where none can be had."""

    def __init__(self, config: EngineConfig, count: int, resources: dict[str, float]):
        options = {"max_restarts": _RESTARTS, "scheduling_strategy": "SPREAD", **resources}
        hire = ray.remote(Worker).options(**options)
        self.members = [Member(hire.remote(config)) for _ in range(count)]
        self.fingerprint = ""  # of the workers' model
        self._why = ""  # Ray's reason for the latest death
        for member in self.members:
            self._open(member)
        self._heard = time.monotonic()  # when there was a worker

    def close(self) -> None:
        """Ends all workers."""
        for member in self.members:
            ray.kill(member.actor)

    def gather(self) -> None:
        """Waits until there is a worker, and a while for the others; who comes later takes part then."""
        end = time.monotonic() + _GATHER
        while any(member.opening for member in self.members) and time.monotonic() < end:
            self.look()
        while not self.ready:
            self.look()

    @property
    def ready(self) -> list[Member]:
        """Those that run."""
        return [member for member in self.members if member.about]

    def look(self) -> list[tuple[Member, Told]]:
        """What a worker has told now, or within a moment. One that is lost opens again where Ray starts it again.

        Raises HiggsError as the workers do, and where none is left or has come for long.
        """
        promised = {ref: one for one in self.members for ref in (one.opening, one.sending) if ref is not None}
        if self.ready:
            self._heard = time.monotonic()
        elif not promised:
            raise HiggsError(
                f"All workers of the Ray cluster are lost. What was spoken so far is kept; run it again.{self._why}"
            )
        elif time.monotonic() - self._heard > _PATIENCE:
            raise HiggsError(f"No worker of the Ray cluster came within {_PATIENCE:.0f} s. See `ray status`.")
        ready, _ = ray.wait(list(promised), timeout=_LOOK)
        found = [(promised[ref], self._hear(promised[ref], ref)) for ref in ready]
        return [(member, told) for member, told in found if told is not None]

    def dismiss(self, member: Member, why: str) -> None:
        """It takes no more part. Raises HiggsError where no other is left."""
        member.about = None
        ray.kill(member.actor)
        if not any(one.about or one.opening for one in self.members):
            raise HiggsError(f"No GPU of the Ray cluster can speak: {why}. Choose --dtype int8.")

    def _open(self, member: Member):
        member.opening = member.actor.open.options(max_task_retries=-1).remote()  # waits for who is started again

    def _hear(self, member: Member, ref: Any) -> Told | None:
        try:
            if ref is member.opening:
                member.opening = None
                self._admit(member, *ray.get([ref]))
                return None
            (told,) = ray.get([next(ref)])
            return told
        except StopIteration:  # its part is whole
            member.sending = None
            return None
        except RayTaskError as error:
            raise own_error(error) from None
        except RayError as error:
            self._why = f" Ray's reason: {_reason(error)}"
            if not member.about:
                return Lost(f"A worker could not be started again.{self._why}")
            lost = Lost(f"{member.name} died; others spoke its part.{self._why}")
            member.about = None
            self._open(member)
            return lost

    def _admit(self, member: Member, about: About):
        if self.fingerprint not in ("", about.fingerprint):
            raise HiggsError(
                f"The model on {about.machine} is not that of the other machines, or its GPU gets another dtype. "
                "Copy the same files to all of them, and name a --dtype."
            )
        self.fingerprint, member.about = about.fingerprint, about


def _reason(error: RayError) -> str:
    """Ray's own words on one line, without the indented list of ids and addresses."""
    lines = [line.strip() for line in str(error).splitlines() if not line[:1].isspace()]
    words = " ".join(filter(None, lines)) or type(error).__name__
    return words if len(words) <= _TOLD else f"{words[:_TOLD].rstrip()}..."


def own_error(error: RayTaskError) -> BaseException:
    """What a worker raised: in its own words where it is meant for users."""
    return error.cause if isinstance(error.cause, HiggsError) else error
