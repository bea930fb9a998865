"""Slots for servers that Ray places: running, awaited or lost, with Ray's reason for a death."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.errors import HiggsError
from ...engines.remote.address import Address
from ...engines.remote.connections import Broken
from ...engines.remote.errors import Lost
from ...engines.remote.server import Kind, Server
from ...engines.remote.server_pool import ServerChange, ServerSource
from .worker import About

_LOG = logging.getLogger("higgs_tts.ray")
_RESTARTS = 3  # of a seat within _WITHIN
_WITHIN = 600.0  # seconds
_GATHER = 120.0  # seconds to wait for all workers before starting with those that run
_PATIENCE = 600.0  # seconds that a worker may take to start
_LOOK = 0.2  # seconds per check
_ANSWER = 1.0  # seconds that a worker may take to tell that it runs
_SHOWN = 400  # maximum characters of Ray's reason for a death


@dataclass(eq=False)
class Seat:
    """A slot for one worker, which is filled again when it dies.

    hire(): has Ray place a worker. about: the worker as last known.
    """

    hire: Callable[[], Any]
    actor: Any = None
    opening: Any = None  # Ray's future of `Worker.open`
    requested: float = 0.0  # when
    about: About | None = None
    server: Server | None = None  # while it runs
    lost: Server | None = None  # whose chunks wait for the next one
    reason: str = ""  # for the latest death
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTARTS + 1))  # when they happened

    @property
    def is_gone(self) -> bool:
        return self.server is None and self.opening is None

    @property
    def name(self) -> str:
        """Name for users, to begin a sentence."""
        return f"The worker on {self.about.machine}, process {self.about.process}," if self.about else "A worker"

    def open(self) -> None:
        """Request a worker, or ask the one that has gone silent. `Seats.admit` waits for it."""
        if self.is_gone:
            self.actor = self.hire()
        self.server, self.requested, self.opening = None, time.monotonic(), self.actor.open.remote()

    def died(self, error: BaseException) -> None:
        """Request another worker, unless too many have died."""
        self.give_up(f" Ray's reason: {reason_of(error)}")
        self.deaths.append(time.monotonic())
        if len(self.deaths) <= _RESTARTS or self.deaths[-1] - self.deaths[0] > _WITHIN:
            self.open()

    def give_up(self, reason: str) -> None:
        """End the worker. reason: begins with a space."""
        self.server = self.opening = None
        self.reason = reason
        ray.kill(self.actor)


class Seats(ServerSource):
    """`count` workers. hire(): has Ray place one. key: that of their servers."""

    def __init__(self, hire: Callable[[], Any], count: int, key: str):
        self.all, self._key = [Seat(hire) for _ in range(count)], key
        self.fingerprint = ""  # of the model, once a worker runs
        self._lock, self._changes = threading.RLock(), list[ServerChange]()  # since the last `changes`
        self.begin()

    @property
    def servers(self) -> list[Server]:  # pyright: ignore[reportIncompatibleVariableOverride] - it is never set
        """Servers of the workers that run."""
        return [seat.server for seat in self.all if seat.server is not None]

    def begin(self) -> None:
        """Fill the seats that were given up."""
        with self._lock:
            self._look()
            self._changes = []
            for seat in self.all:
                seat.lost = None
                if seat.is_gone:
                    seat.open()

    def close(self) -> None:
        for seat in self.all:
            ray.kill(seat.actor)

    def gather(self) -> None:
        """Wait for a first worker, and up to _GATHER seconds for the others. Raises HiggsError if none starts."""
        began = time.monotonic()
        while opening := [seat for seat in self.all if seat.opening is not None]:
            if self.servers and time.monotonic() - began > _GATHER:
                return
            for seat in opening:
                self.admit(seat, _LOOK)
        if not self.servers:
            raise self.none_left(())

    def admit(self, seat: Seat, seconds: float) -> str | None:
        """Wait for a seat's worker. None on timeout, else a note of what happened, which may be empty.

        Raises HiggsError if its model cannot be loaded, or differs.
        """
        ready, _ = ray.wait([seat.opening], timeout=seconds)
        if not ready:
            if time.monotonic() - seat.requested <= _PATIENCE:
                return None
            seat.give_up(f" Ray has not started it within {_PATIENCE:.0f} s. Check `ray status`.")
            return ""
        before, name = seat.about, seat.name
        try:
            about: About = ray.get(seat.opening)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, HiggsError):
                raise cause from None
            seat.died(cause)
            seat.about = None
            return f"{name} died; the other workers took over its part.{seat.reason}" if seat.lost else ""
        if self.fingerprint not in ("", about.wire.fingerprint):
            raise HiggsError(
                f"The model on {about.machine} differs from the other machines' model, or its GPU uses a different "
                "dtype. Copy the same files to all machines, and set --dtype."
            )
        self.fingerprint, seat.about, seat.opening = about.wire.fingerprint, about, None
        address = Address(about.host, about.port, False, "", "", self._key)
        seat.server = Server(address, Kind.OURS, wire=about.wire)
        is_other = seat.lost and before and before.process != about.process
        return f"{name} died; the other workers took over its part." if is_other else ""

    def is_lost(self, error: HiggsError) -> bool:
        return isinstance(error, (Broken, Lost))

    def lose(self, server: Server, error: HiggsError) -> tuple[bool, str]:
        with self._lock:
            seat = next((seat for seat in self.all if seat.server is server), None)
            if seat is None:
                return False, ""
            if not self.is_lost(error):  # such as too little memory: another would be no better
                seat.give_up(f" It {error}")
                return False, self._noted(f"{seat.name} {error} The other workers took over its part.")
            seat.lost = server
            seat.open()
            return True, ""

    def changes(self) -> list[ServerChange]:
        with self._lock:
            self._look()
            changes, self._changes = self._changes, []
            return changes

    def _look(self):
        """See which workers have come or died, without waiting."""
        for seat in [seat for seat in self.all if seat.opening is not None]:
            try:
                note = self.admit(seat, 0.0)
            except HiggsError as error:
                seat.give_up(f" {error}")
                note = ""
            if note is None:
                continue
            if note:
                self._changes.append(ServerChange(note=self._noted(note)))
            if seat.server is not None:
                self._changes.append(ServerChange(seat.server, seat.lost))
            elif seat.is_gone:
                note = self._noted(f"A worker could not be started.{seat.reason}")
                self._changes.append(ServerChange(None, seat.lost, note))
            seat.lost = seat.lost if seat.opening else None

    @property
    def is_waiting(self) -> bool:
        return any(seat.opening is not None for seat in self.all)

    def none_left(self, reasons: Sequence[str]) -> HiggsError:
        reason = next((seat.reason for seat in self.all if seat.reason), "")
        return HiggsError(
            f"All workers of the Ray cluster are lost. Try again; narrate continues where it stopped.{reason}"
        )

    def describe(self, chunks: Mapping[Server, int]) -> str:
        used = Counter(
            server.wire.kind.rpartition(", ")[2] for server, count in chunks.items() if count and server.wire
        )
        return "; ".join(f"{count} x {kind}" for kind, count in used.items())

    def states(self) -> list[dict[str, object]]:
        """Return machine, process, device and state of each worker: running, starting, not answering or lost.

        Those that have died meanwhile are placed again.
        """
        pings = {seat: (seat.server, seat.actor.is_open.remote()) for seat in self.all if seat.server}
        futures = [future for _, future in pings.values()]
        answered, _ = ray.wait(futures, num_returns=len(futures), timeout=_ANSWER) if futures else ([], [])
        silent = [seat for seat, (_, future) in pings.items() if future not in answered]
        with self._lock:
            for server, future in pings.values():
                if future in answered:
                    try:
                        ray.get(future)
                    except RayError:
                        self.lose(server, Broken("died."))
            self._look()
            return [_state(seat, seat in silent) for seat in self.all]

    def _noted(self, note: str) -> str:
        _LOG.warning(note)
        return note


def _state(seat: Seat, is_silent: bool) -> dict[str, object]:
    if seat.server is None or seat.about is None:
        why = {"reason": seat.reason.strip()} if seat.reason else {}
        return {"state": "lost" if seat.is_gone else "starting", **why}
    who = {"machine": seat.about.machine, "process": seat.about.process, "device": seat.about.kind}
    return {"state": "not answering" if is_silent else "running", **who}


def reason_of(error: BaseException) -> str:
    """Return Ray's message on one line, without the indented list of ids and addresses."""
    lines = [line.strip() for line in str(error).splitlines() if not line[:1].isspace()]
    words = " ".join(filter(None, lines)) or type(error).__name__
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN].rstrip()}..."
