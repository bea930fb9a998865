"""Decoder over HTTP servers: a shared queue of chunks, with several calls per server."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import torch

from ...audio import pcm
from ...core.config import ServerConfig
from ...core.errors import HiggsError
from ...core.sequence import Sequence
from ...speech.decoder import Heard, ReferenceClip, SessionReport, Stage
from ...voice.voice import Voice
from ..device_decoder import Encode, run_into
from ..pool import Member, Pool
from ..pool_session import PoolSession
from .connections import Broken, Connections, TimedOut
from .errors import Busy, Failing, Lost
from .find import FoundServers
from .prompts import RemoteSequence
from .server import Server


class ServerPool:
    """Decoder over servers, for one call of `speak`. A lost server is not used in later stages."""

    def __init__(self, found: FoundServers, config: ServerConfig, encode: Encode):
        self._servers, self._notes = list(found.servers), found.warnings
        self._config, self._encode = config, encode
        self._chunks: Counter[str] = Counter()  # by server label

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[ServerPoolSession]:
        session = ServerPoolSession(self, stage.rows)
        try:
            yield session
        finally:
            session.close()
            self._servers, self._notes = session.left, ()
            self._chunks = session.chunks


class ServerPoolSession(PoolSession):
    """A `Session` on servers. A failed call is retried on another server, or on the same one after a back-off."""

    def __init__(self, pool: ServerPool, rows: int):
        self._servers = {Member(server.label): server for server in pool._servers}
        super().__init__(Pool(self._servers))
        self._config, self._encode, self._calls = pool._config, pool._encode, min(pool._config.calls, max(1, rows))
        self._notes, self._before = pool._notes, pool._chunks
        self._connections = Connections()

    @property
    def left(self) -> list[Server]:
        """Servers still in use."""
        return [self._servers[member] for member in self._pool.left]

    @property
    def chunks(self) -> Counter[str]:
        """Chunks spoken by each server, including earlier stages."""
        return self._before + Counter({member.label: member.spoken for member in self._pool.members})

    @property
    def report(self) -> SessionReport:
        lost = [f"{member.label} {member.error} The other servers took over its part." for member in self._pool.lost]
        return SessionReport(_described(self.chunks.items()), (*self._notes, *lost))

    def drop(self, *sequences: Sequence) -> None:
        """Remove sequences. The answer to a call in flight is ignored."""
        with self._changed:
            self._pool.drop(*sequences)

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        made: Future[Voice] = Future()
        run_into(made, lambda: self._encode(*clip))
        return made

    def _start(self, members: list[Member]) -> None:
        for _ in range(self._calls):
            for member in members:
                self._run(self._servers[member].address.label, self._work, member)

    def _end(self) -> BaseException | None:
        lost = self._pool.lost
        if len(lost) == 1:
            return HiggsError(f"{lost[0].label} {lost[0].error}")
        told = " ".join(f"{member.label} {member.error}" for member in lost)
        return HiggsError(f"No server is left to use. {told}")

    def _work(self, member: Member):
        """Make one call to a server after another, in a thread."""
        try:
            while (copy := self._next(member)) is not None:
                self._ask(member, copy)
        except HiggsError as error:  # no other server would take it
            self._fail(HiggsError(f"{member.label} {error}"))
        except BaseException as error:
            self._fail(error)
            raise

    def _next(self, member: Member) -> Sequence | None:
        """Wait for a chunk and for the end of the server's back-off. None at the end of the session."""
        with self._changed:
            while not (self._closed or member.error):
                now = time.monotonic()
                if copies := self._pool.take(member, 1, now):
                    return copies[0]
                rest = member.rest_until - now
                self._changed.wait(rest if rest > 0 and self._pool.has_work(member) else None)
        return None

    def _ask(self, member: Member, copy: Sequence):
        assert isinstance(copy, RemoteSequence)
        if copy.finished:  # came with PCM frames
            self._hear(member, copy, copy.codes[0], True)
            return
        try:
            for frames, ended in self._servers[member].speak(copy, self._connections, self._config.timeout):
                copy.codes.append(frames)
                copy.num_frames += len(frames)
                copy.ended = bool(ended)
                self._hear(member, copy, frames, ended is not None)
        except (Lost, TimedOut) as error:
            self._decide(self._pool.lose, member, error)
        except (Busy, Broken, Failing) as error:
            is_busy, rest = isinstance(error, Busy), getattr(error, "rest", 0.0)
            self._decide(self._pool.fail, member, copy, error, time.monotonic(), is_busy, rest)

    def _hear(self, member: Member, copy: Sequence, frames: torch.Tensor, is_last: bool):
        self._tell(self._pool.hear, member, Heard(copy, pcm.to_wav(frames), is_last))

    def close(self) -> None:
        """Close all connections, so that servers stop. A thread still connecting ends by itself."""
        super().close()
        self._connections.close()


def _described(chunks: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{label} ({count} chunk{'s' if count > 1 else ''})" for label, count in chunks if count)
