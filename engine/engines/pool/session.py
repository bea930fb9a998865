"""Session of a pool whose members are threads of this process."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from ...core.sequence import Sequence
from ...speech.decoder import Heard, SessionReport
from .pool import Member, Pool

TICK = 0.1  # seconds without output after which a step returns, so that the caller can stop


class PoolSession(ABC):
    """Passes events from member threads to the pool, and the pool's output to the caller.

    The lock of `_changed` guards the pool. It is notified when waiting members may have work.
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

    @property
    def is_busy(self) -> bool:
        return not self._pool.is_done

    @abstractmethod
    def _start(self, members: list[Member]) -> None:
        """Start the threads of these members."""

    @abstractmethod
    def _end(self) -> BaseException | None:
        """Return the error that ends the call once every member is lost. None if a replacement was found."""

    def submit(self, *sequences: Sequence) -> None:
        with self._changed:
            self._pool.submit(*sequences)
            self._start(self._pool.start())
            self._changed.notify_all()

    def wake(self) -> None:
        self._events.put(list)

    def step(self) -> list[Heard]:
        """Wait for what members report, at most for a tick, and return their output."""
        events: deque[Callable[[], list[Heard]]] = deque()
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=TICK))
        while not self._events.empty():
            events.append(self._events.get())
        return self._take_in(events)

    def _take_in(self, events: deque[Callable[[], list[Heard]]]) -> list[Heard]:
        outputs = []
        with self._changed:
            for event in events:
                outputs += event()
            if not (self._pool.is_done or self._pool.left) and (error := self._end()):
                raise type(error)(*error.args)  # a copy: the member's own must not gain a traceback
            self._start(self._pool.start())
            self._changed.notify_all()
        return outputs

    def _tell(self, decide: Callable[..., list[Heard]], *given: object) -> None:
        """Queue decide(*given) for the thread that steps the session. Called from a member's thread."""
        self._events.put(functools.partial(decide, *given))

    def _decide(self, decide: Callable[..., list[Heard]], *given: object) -> None:
        """Call decide(*given) at once, so that the member's thread sees the outcome, and queue its output.

        Both under the lock: what a member that takes over lets hear must come after it.
        """
        with self._changed:
            if self._closed:  # the error comes from closing the connections
                return
            self._tell(list, decide(*given))
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """End the call with an unexpected error. Called from a member's thread."""
        errors = [error]

        def fail() -> list[Heard]:
            raise errors.pop()  # leaves no reference in the traceback's frames

        self._events.put(fail)

    def _run(self, name: str, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, name=f"Higgs TTS {name}", daemon=True)
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def close(self) -> None:
        """Stop all members, each at its next step."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
