"""One queue of chunks, and servers that are asked for them, several calls at a time. Knows no text."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import NamedTuple

from ..config import ServerConfig
from ..errors import HiggsError
from .connections import Broken, Connections, TimedOut
from .errors import Busy, Failing, Lost
from .find import LOOK
from .prompts import RemoteSequence
from .server import Server, Spoken

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds before a server is asked again; doubled each time
_FAILURES = 3  # in a row, after which a server is given up
_BUSY_SECONDS = 180.0  # of being busy without an answer between


class Done(NamedTuple):
    """A chunk, and what a server said."""

    job: RemoteSequence
    spoken: Spoken


class _Left(NamedTuple):
    """A server that takes no more part."""

    post: _Post
    error: HiggsError


@dataclass(eq=False)
class _Post:
    """What a server has been good for."""

    server: Server
    chunks: int = 0
    rests: int = 0  # since the last answer
    failures: int = 0  # of these, those of a server that was not busy
    busy_since: float | None = None
    rest_until: float = 0.0
    lost: HiggsError | None = None


class Dispatch:
    """The servers at work on one stage, for the length of a `with`; iterate for what is done, in any order.

    Iterating yields None whenever nothing was done for a while. What a server was asked and did not answer goes to
    another, or to itself once it has rested. Raises what is the call's own fault, and where no server is left.
    """

    def __init__(self, servers: Ordered[Server], jobs: Iterable[RemoteSequence], config: ServerConfig):
        self._config = config
        self._waiting: deque[RemoteSequence] = deque(jobs)
        self._missing = set(self._waiting)
        self._posts = [_Post(server) for server in servers]
        self._results: queue.Queue[Done | _Left | BaseException] = queue.Queue()
        self._changed = threading.Condition()
        self._connections = Connections()
        self._threads = [
            threading.Thread(
                target=self._work, args=(post,), name=f"Higgs TTS {post.server.address.label}", daemon=True
            )
            for _ in range(min(config.calls, len(self._missing)))
            for post in self._posts
        ]

    def __enter__(self) -> Dispatch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes all connections, upon which the servers stop. A thread that waits for one to open ends by itself."""
        self._connections.close()
        with self._changed:
            self._changed.notify_all()

    def add(self, *jobs: RemoteSequence) -> None:
        """More to say, after what waits."""
        self._missing.update(jobs)
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify_all()

    @property
    def lost(self) -> dict[Server, HiggsError]:
        """Servers that take no more part, and why."""
        return {post.server: post.lost for post in self._posts if post.lost is not None}

    @property
    def chunks(self) -> dict[Server, int]:
        """How many each has said."""
        return {post.server: post.chunks for post in self._posts}

    def __iter__(self) -> Iterator[Done | None]:
        while self._missing:
            try:
                found = self._results.get(timeout=LOOK)
            except queue.Empty:
                yield None
                continue
            if isinstance(found, Done):
                self._missing.remove(found.job)
                yield found
            elif isinstance(found, BaseException):
                raise found
            elif all(post.lost is not None for post in self._posts):
                raise self._end(found)

    def _end(self, left: _Left) -> HiggsError:
        if len(self._posts) == 1:
            return HiggsError(f"{left.post.server.label} {left.error}")
        told = " ".join(f"{post.server.label} {post.lost}" for post in self._posts)
        return HiggsError(f"No server is left that could speak. {told}")

    def _work(self, post: _Post):
        """A thread: one call to a server after another."""
        try:
            while (job := self._next(post)) is not None:
                self._ask(post, job)
        except HiggsError as error:  # no other server would take it
            self._results.put(HiggsError(f"{post.server.label} {error}"))
        except BaseException as error:
            self._results.put(error)
            raise

    def _next(self, post: _Post) -> RemoteSequence | None:
        """A chunk, once there is one and the server has rested; None at the end."""
        with self._changed:
            while not (self._connections.closed or post.lost):
                rest = post.rest_until - time.monotonic()
                if self._waiting and rest <= 0:
                    return self._waiting.popleft()
                self._changed.wait(rest if self._waiting else None)
        return None

    def _ask(self, post: _Post, job: RemoteSequence):
        try:
            spoken = post.server.speak(job, self._connections, self._config.timeout)
        except (Lost, TimedOut) as error:
            self._give_back(job, post, error, is_lost=True)
        except (Busy, Broken, Failing) as error:
            self._give_back(job, post, error)
        else:
            with self._changed:
                post.chunks, post.rests, post.failures, post.busy_since = post.chunks + 1, 0, 0, None
            self._results.put(Done(job, spoken))

    def _give_back(self, job: RemoteSequence, post: _Post, error: HiggsError, is_lost: bool = False):
        """The chunk to the queue's head; the server rests, or is given up."""
        with self._changed:
            self._waiting.appendleft(job)
            if not (is_lost or self._connections.closed):
                is_lost = self._rest(post, error)
            if is_lost and post.lost is None:
                post.lost = error.with_traceback(None)
                self._results.put(_Left(post, error))
            self._changed.notify_all()

    def _rest(self, post: _Post, error: HiggsError) -> bool:
        """Whether it is to be given up. What many calls of the same moment meet counts once."""
        now = time.monotonic()
        if now < post.rest_until:
            return False
        post.rests += 1
        rest = min(LONGEST_REST, FIRST_REST * 2 ** (post.rests - 1))
        if isinstance(error, Busy):
            post.busy_since = post.busy_since or now
            post.rest_until = now + min(LONGEST_REST, error.rest or rest)
            return now - post.busy_since > _BUSY_SECONDS
        post.failures, post.busy_since = post.failures + 1, None
        post.rest_until = now + rest
        return post.failures >= _FAILURES
