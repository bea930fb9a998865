"""Slots for Ray workers: running, awaited or lost, with Ray's reason for a death."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.config import EngineConfig
from ...core.errors import HiggsError
from ..pool.pool import Member
from .worker import About, Worker

_RESTARTS = 3  # of a worker that dies while it loads its model, or of a seat within _WITHIN
_WITHIN = 600.0  # seconds
_GATHER = 120.0  # seconds to wait for all workers before starting with those that run
_PATIENCE = 600.0  # seconds that a worker may take to start
_LOOK = 0.2  # seconds per check
_ANSWER = 1.0  # seconds that a worker may take to tell that it runs
_SHOWN = 400  # maximum characters of Ray's reason for a death


@dataclass(eq=False)
class Seat:
    """A slot for one worker, which is filled again when it dies.

    hire(): has Ray place a worker. about: the worker as last known; None while it does not run.
    """

    hire: Callable[[], Any]
    actor: Any = None
    opening: Any = None  # Ray's future of `Worker.open`
    asked: float = 0.0  # when it was requested
    about: About | None = None
    reason: str = ""  # for the latest death
    member: Member | None = None  # in the running session
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTARTS + 1))  # when they happened

    @property
    def is_gone(self) -> bool:
        """True if no worker runs or is awaited."""
        return self.about is None and self.opening is None

    @property
    def name(self) -> str:
        """Name for users, to begin a sentence."""
        return f"The worker on {self.about.machine}, process {self.about.process}," if self.about else "A worker"

    def open(self) -> None:
        """Request a worker, or confirmation that it runs. `admit` waits for it."""
        if self.is_gone:
            self.actor = self.hire()
        self.asked = time.monotonic()
        self.opening = self.actor.open.options(max_task_retries=-1).remote()

    def died(self, error: RayError) -> None:
        """Request another worker, unless too many have died."""
        self.give_up(f" Ray's reason: {reason_of(error)}")
        self.deaths.append(time.monotonic())
        if len(self.deaths) <= _RESTARTS or self.deaths[-1] - self.deaths[0] > _WITHIN:
            self.open()

    def give_up(self, reason: str) -> None:
        """End the worker. reason: begins with a space."""
        self.about = self.opening = None
        self.reason = reason
        ray.kill(self.actor)


class Seats:
    """`count` workers, each with the given Ray resources."""

    def __init__(self, config: EngineConfig, count: int, resources: dict[str, float]):
        options = {"max_restarts": _RESTARTS, "scheduling_strategy": "SPREAD", "max_concurrency": 4, **resources}
        hire = functools.partial(ray.remote(Worker).options(**options).remote, config)
        self.all = [Seat(hire) for _ in range(count)]
        self.fingerprint = ""  # of the model, once a worker runs
        self.call()

    def __len__(self) -> int:
        return len(self.all)

    def close(self) -> None:
        """End all workers."""
        for seat in self.all:
            ray.kill(seat.actor)

    @property
    def ready(self) -> list[Seat]:
        """Seats with a running worker."""
        return [seat for seat in self.all if seat.about]

    def call(self) -> None:
        """Ask all workers to confirm that they run, and fill the seats that were given up."""
        for seat in self.all:
            seat.open()

    def states(self) -> list[dict[str, object]]:
        """Return machine, process, device and state of each worker: running, starting, not answering or lost."""
        asked = {seat: seat.actor.is_open.remote() for seat in self.ready}
        answers, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER) if asked else ([], [])
        return [_state(seat, asked[seat] if asked.get(seat) in answers else None) for seat in self.all]

    def gather(self) -> None:
        """Wait for a first worker, and up to _GATHER seconds for the others. Raises HiggsError if none starts."""
        began = time.monotonic()
        while opening := [seat for seat in self.all if seat.opening is not None]:
            if self.ready and time.monotonic() - began > _GATHER:
                return
            for seat in opening:
                self.admit(seat, _LOOK)
        if not self.ready:
            raise self.none_left()

    def admit(self, seat: Seat, seconds: float) -> bool:
        """Wait for a seat's worker. False on timeout, True if it runs or was given up.

        Raises HiggsError if its model cannot be loaded, or differs.
        """
        if (opening := seat.opening) is None:
            return True
        ready, _ = ray.wait([opening], timeout=seconds)
        if seat.opening is not opening:  # a later session has asked again
            return False
        if not ready:
            if is_late := time.monotonic() - seat.asked > _PATIENCE:
                seat.give_up(f" Ray has not started it within {_PATIENCE:.0f} s. Check `ray status`.")
            return is_late
        try:
            about: About = ray.get(opening)
        except RayTaskError as error:
            raise own_error(error) from None
        except RayError as error:
            seat.give_up(f" Ray's reason: {reason_of(error)}")
            return True
        if self.fingerprint not in ("", about.fingerprint):
            raise HiggsError(
                f"The model on {about.machine} differs from the other machines' model, or its GPU uses a different "
                "dtype. Copy the same files to all machines, and set --dtype."
            )
        self.fingerprint, seat.about, seat.opening = about.fingerprint, about, None
        return True

    def none_left(self) -> HiggsError:
        """Return the error for a cluster without workers."""
        reason = next((seat.reason for seat in self.all if seat.reason), "")
        return HiggsError(
            f"All workers of the Ray cluster are lost. Try again; narrate continues where it stopped.{reason}"
        )


def _state(seat: Seat, answer: Any) -> dict[str, object]:
    """Describe a seat. answer: Ray's future of `Worker.is_open`, or None if it is late."""
    if (about := seat.about) is None:
        why = {"reason": seat.reason.strip()} if seat.reason else {}
        return {"state": "lost" if seat.is_gone else "starting", **why}
    state = "not answering"
    if answer is not None:
        try:
            state = "running" if ray.get(answer) else "starting"
        except RayError:  # died since; Ray restarts it
            state = "starting"
    return {"state": state, "machine": about.machine, "process": about.process, "device": about.kind}


def reason_of(error: RayError) -> str:
    """Return Ray's message on one line, without the indented list of ids and addresses."""
    lines = [line.strip() for line in str(error).splitlines() if not line[:1].isspace()]
    words = " ".join(filter(None, lines)) or type(error).__name__
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN].rstrip()}..."


def own_error(error: RayTaskError) -> BaseException:
    """Unwrap a worker's HiggsError. Other errors are returned as they are."""
    return error.cause if isinstance(error.cause, HiggsError) else error
