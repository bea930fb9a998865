"""Slots for Ray workers: running, awaited or lost, with Ray's reason for a death."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.config import EngineConfig
from ...core.errors import HiggsError
from ..pool import Member
from .worker import About, Worker

_RESTARTS = 3  # per worker
_GATHER = 120.0  # seconds to wait for all workers before starting with those that run
_PATIENCE = 600.0  # seconds without any worker before giving up
_LOOK = 0.2  # seconds per check
_SHOWN = 400  # maximum characters of Ray's reason for a death


@dataclass(eq=False)
class Seat:
    """A slot for one worker, which Ray restarts. about: None while it does not run."""

    actor: Any
    opening: Any = None  # Ray's future of `Worker.open`
    about: About | None = None
    reason: str = ""  # Ray's reason for the latest death
    member: Member | None = None  # in the running session

    @property
    def is_gone(self) -> bool:
        """True if no worker runs or is awaited."""
        return self.about is None and self.opening is None

    @property
    def name(self) -> str:
        """Name for users, to begin a sentence."""
        return f"The worker on {self.about.machine}, process {self.about.process}," if self.about else "A worker"

    def open(self) -> None:
        """Request a worker. `admit` waits for it."""
        self.about = None
        self.opening = self.actor.open.options(max_task_retries=-1).remote()


class Seats:
    """`count` workers, each with the given Ray resources."""

    def __init__(self, config: EngineConfig, count: int, resources: dict[str, float]):
        options = {"max_restarts": _RESTARTS, "scheduling_strategy": "SPREAD", "max_concurrency": 4, **resources}
        hire = ray.remote(Worker).options(**options)
        self.all = [Seat(hire.remote(config)) for _ in range(count)]
        self.fingerprint = ""  # of the model, once a worker runs
        for seat in self.all:
            seat.open()

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

    def gather(self) -> None:
        """Wait for a first worker, and up to _GATHER seconds for the others. Raises HiggsError if none starts."""
        began = time.monotonic()
        while opening := [seat for seat in self.all if seat.opening is not None]:
            waited = time.monotonic() - began
            if self.ready and waited > _GATHER:
                return
            if waited > _PATIENCE:
                raise HiggsError(f"No Ray worker started within {_PATIENCE:.0f} s. Check `ray status`.")
            for seat in opening:
                self.admit(seat, _LOOK)
        if not self.ready:
            raise self.none_left()

    def admit(self, seat: Seat, seconds: float) -> bool:
        """Wait for a seat's worker. False on timeout, True if it runs or has failed.

        Raises HiggsError if its model differs.
        """
        ready, _ = ray.wait([seat.opening], timeout=seconds)
        if not ready:
            return False
        opening, seat.opening = seat.opening, None
        try:
            about: About = ray.get(opening)
        except RayTaskError as error:
            raise own_error(error) from None
        except RayError as error:
            seat.reason = f" Ray's reason: {reason_of(error)}"
            return True
        if self.fingerprint not in ("", about.fingerprint):
            raise HiggsError(
                f"The model on {about.machine} differs from the other machines' model, or its GPU uses a different "
                "dtype. Copy the same files to all machines, and set --dtype."
            )
        self.fingerprint, seat.about = about.fingerprint, about
        return True

    def none_left(self) -> HiggsError:
        """Return the error for a cluster without workers."""
        reason = next((seat.reason for seat in self.all if seat.reason), "")
        return HiggsError(
            f"All workers of the Ray cluster are lost. Finished speech is kept; run the command again.{reason}"
        )


def reason_of(error: RayError) -> str:
    """Return Ray's message on one line, without the indented list of ids and addresses."""
    lines = [line.strip() for line in str(error).splitlines() if not line[:1].isspace()]
    words = " ".join(filter(None, lines)) or type(error).__name__
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN].rstrip()}..."


def own_error(error: RayTaskError) -> BaseException:
    """Unwrap a worker's HiggsError. Other errors are returned as they are."""
    return error.cause if isinstance(error.cause, HiggsError) else error
