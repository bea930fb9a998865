"""A session of a pool whose members are threads of this process."""

from __future__ import annotations

import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

from ..core.sequence import Sequence
from ..speech.decoder import Heard, SessionReport
from .pool import Member, Pool

TICK = 0.1  # seconds without news after which whoever iterates may look whether to stop


class PoolSession(ABC):
    """Tells the pool what its members' threads report, and the caller what that comes to.

    The lock of `_changed` guards the pool; it is notified when there is something to do for members that wait.
    """

    def __init__(self, pool: Pool):
        self._pool = pool
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[Callable[[], list[Heard]]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    @abstractmethod
    def report(self) -> SessionReport: ...

    @abstractmethod
    def _start(self, members: list[Member]) -> None:
        """Start the threads of members that begin."""

    @abstractmethod
    def _end(self) -> BaseException | None:
        """Return the error that ends the call once every member is lost; None if another was found."""

    def submit(self, *sequences: Sequence) -> None:
        with self._changed:
            self._pool.submit(*sequences)
            self._start(self._pool.start())
            self._changed.notify_all()

    def wake(self) -> None:
        self._events.put(list)

    def __iter__(self) -> Iterator[list[Heard]]:
        while not self._pool.is_done:
            try:
                events = deque([self._events.get(timeout=TICK)])
            except queue.Empty:
                yield []
                continue
            while not self._events.empty():
                events.append(self._events.get())
            yield self._take_in(events)

    def _take_in(self, events: deque[Callable[[], list[Heard]]]) -> list[Heard]:
        heard = []
        with self._changed:
            for event in events:
                heard += event()
            if not self._pool.left and (error := self._end()):
                raise type(error)(*error.args)  # the member keeps its own, which no traceback may refer to
            self._start(self._pool.start())
            self._changed.notify_all()
        return heard

    def _tell(self, decide: Callable[..., list[Heard]], *given: object) -> None:
        """From a member's thread: decide(*given) is called where the session is iterated."""
        self._events.put(functools.partial(decide, *given))

    def _fail(self, error: BaseException) -> None:
        """From a member's thread: end the call with an error that is not the member's own."""
        errors = [error]

        def fail() -> list[Heard]:
            raise errors.pop()  # so that no frame of its traceback refers to it

        self._events.put(fail)

    def _run(self, name: str, work: Callable[..., None], *given: object) -> None:
        self._threads.append(threading.Thread(target=work, args=given, name=f"Higgs TTS {name}", daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        """End all members' work; each stops at its next step."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
