"""Decoder over HTTP servers: a shared queue of chunks, with several calls per server."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from ...audio import pcm
from ...core.config import ServerConfig
from ...core.errors import HiggsError
from ...core.sequence import Sequence as Decoded
from ...speech.decoder import Answer, Heard, ReferenceClip, SessionReport, Stage, done_now, run_into
from ...voice.voice import Voice
from ..pool.pool import Member, Pool
from ..pool.session import TICK, PoolSession
from .chunk_calls import encoded_by, spoken_by
from .connections import Broken, Connections, TimedOut
from .errors import Busy, Failing, Lost
from .prompts import RemoteSequence
from .server import Server


class ServerChange(NamedTuple):
    """A server that came, or will not come, in the place of one that was lost. note: for users."""

    came: Server | None = None
    replaces: Server | None = None
    note: str = ""


class ServerSource:
    """The servers in use. What is lost stays lost."""

    def __init__(self, servers: Iterable[Server]):
        self.servers = list(servers)

    def begin(self) -> None:
        """Prepare for a session."""

    def is_lost(self, error: HiggsError) -> bool:
        """True if a server is not to be asked again after this error."""
        return isinstance(error, (Lost, TimedOut))

    def lose(self, server: Server, error: HiggsError) -> tuple[bool, str]:
        """Use a server no more. Returns whether another of its kind may take its place, and a note for users."""
        self.servers = [one for one in self.servers if one is not server]
        return False, f"{server.label} {error} The other servers took over its part."

    def changes(self) -> list[ServerChange]:
        """Return what has changed since the last call, without waiting."""
        return []

    @property
    def is_waiting(self) -> bool:
        """True if servers are still to come."""
        return False

    def none_left(self, reasons: Sequence[str]) -> HiggsError:
        """Return the error for a call without servers. reasons: what was wrong with each."""
        return HiggsError(reasons[0] if len(reasons) == 1 else f"No server is left to use. {' '.join(reasons)}")

    def describe(self, chunks: Mapping[Server, int]) -> str:
        counted = Counter[str]()
        for server, count in chunks.items():
            counted[server.label] += count
        return ", ".join(
            f"{label} ({count} chunk{'s' if count > 1 else ''})" for label, count in counted.items() if count
        )


class ServerPool:
    """Decoder over servers. A lost server is not used in later stages.

    notes: for the first stage's report. encode: encodes clips for servers that return no codes.
    None: they all return codes, and encode clips.
    """

    def __init__(
        self, source: ServerSource, config: ServerConfig, encode: Callable[..., Voice] | None, notes: Sequence[str] = ()
    ):
        self.source, self.config, self.encode, self.notes = source, config, encode, list(notes)
        self.chunks: Counter[Server] = Counter()

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[ServerPoolSession]:
        session = ServerPoolSession(self)
        try:
            yield session
        finally:
            session.close()
            self.notes = []


class ServerPoolSession(PoolSession):
    """A `Session` on servers. A failed call is retried on another server, or on the same one after a back-off."""

    def __init__(self, decoder: ServerPool):
        self._source, self._config, self._encode = decoder.source, decoder.config, decoder.encode
        self._chunks, self._notes = decoder.chunks, decoder.notes
        self._servers: dict[Member, Server] = {}
        self._has_begun = False
        super().__init__(Pool([]))
        self._connections = Connections()
        self._clips: set[Future[Voice]] = set()  # being encoded by servers

    @property
    def report(self) -> SessionReport:
        return SessionReport(self._source.describe(self._chunks), tuple(self._notes))

    @property
    def is_busy(self) -> bool:
        return super().is_busy or bool(self._clips)

    def submit(self, *sequences: Decoded) -> None:
        with self._changed:
            self._begin()
            super().submit(*sequences)

    def _begin(self):
        """Take the servers, once there is work."""
        if not self._has_begun:
            self._has_begun = True
            self._source.begin()
            for server in self._source.servers:
                self._change(server, None, "")

    def drop(self, *sequences: Decoded) -> None:
        """Remove sequences. The answer to a call in flight is ignored."""
        with self._changed:
            self._pool.drop(*sequences)

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        if self._encode is not None:
            return done_now(partial(self._encode, *clip))
        made: Future[Voice] = Future()
        with self._changed:
            self._begin()
            self._clips.add(made)
        self._run("voice", self._have_encoded, made, clip)
        return made

    def ask(self, engine: Any, question: Callable[[Any], Answer]) -> Future[Answer]:
        return done_now(lambda: question(engine))

    def _have_encoded(self, made: Future[Voice], clip: ReferenceClip):
        """Have a clip encoded, and wait for a server as long as one may come. In a thread."""

        given = *clip[:2], clip.transcript or None, ""

        def encode() -> Voice:
            while True:
                error = self._source.none_left(())
                for member in self._pool.left:
                    server = self._servers[member]
                    try:
                        return encoded_by([server], given, self._connections, self._config.timeout)
                    except (Busy, Broken, Failing, Lost) as failed:
                        error = failed
                        if self._source.is_lost(failed):
                            self._decide(self._failed, member, server, None, failed)
                if self._closed or not self._source.is_waiting:
                    raise error
                time.sleep(TICK)

        run_into(made, encode)
        self._clips.discard(made)
        self.wake()

    def _take_in(self, events: deque[Callable[[], list[Heard]]]) -> list[Heard]:
        with self._changed:
            events.extend(partial(self._change, *change) for change in self._source.changes())
            return super()._take_in(events)

    def _change(self, came: Server | None, replaces: Server | None, note: str) -> list[Heard]:
        self._notes += [note] if note else []
        lost = next((member for member, server in self._servers.items() if server is replaces), None)
        if came is None:
            return [] if lost is None else self._pool.give_up(lost)
        member = Member(came.label, came.wire.kind if came.wire else "")
        self._servers[member] = came
        self._chunks[came] += 0  # named in this order
        return self._pool.join(member, lost)

    def _start(self, members: list[Member]) -> None:
        """Begin the calls that there is room for, each in a thread, by the server that has the fewest."""
        now = time.monotonic()
        while True:
            free = [one for one in self._pool.left if len(one.parts) < self._config.calls and now >= one.rest_until]
            member = min(filter(self._pool.has_work, free), key=lambda one: len(one.parts), default=None)
            if member is None or self._closed:
                return
            (copy,) = self._pool.take(member, 1, now)
            self._run(self._servers[member].address.label, self._call, member, copy)

    def _end(self) -> BaseException | None:
        if self._source.is_waiting:
            return None
        return self._source.none_left([f"{member.label} {member.error}" for member in self._pool.lost])

    def _call(self, member: Member, copy: Decoded):
        server = self._servers[member]
        try:
            self._decode(member, server, copy)
        except (Busy, Broken, Failing, Lost) as error:
            self._decide(self._failed, member, server, copy, error)
        except HiggsError as error:  # no other server would take it
            self._fail(HiggsError(f"{member.label} {error}"))
        except BaseException as error:
            self._fail(error)
            raise

    def _failed(self, member: Member, server: Server, copy: Decoded | None, error: HiggsError) -> list[Heard]:
        if copy is not None and not self._source.is_lost(error):
            is_busy, rest = isinstance(error, Busy), getattr(error, "rest", 0.0)
            outputs = self._pool.fail(member, copy, error, time.monotonic(), is_busy, rest)
            if member.error is None:
                return outputs
            _, note = self._source.lose(server, error)
            self._notes.append(note)
            return outputs
        if member.error is not None:
            return []
        returns, note = self._source.lose(server, error)
        self._notes += [note] if note else []
        return self._pool.lose(member, error, returns)

    def _decode(self, member: Member, server: Server, copy: Decoded):
        """Decode a chunk: to codes by a server of ours, or else to samples."""
        hear = partial(self._hear, member, copy.finished)
        if self._encode is None:
            for piece in spoken_by(server, copy, self._connections, self._config.timeout):
                copy.num_frames = piece.frames
                if piece.codes is not None:
                    copy.fill(piece.codes, piece.ended)
                    copy.verdict = piece.verdict
                self._tell(hear, Heard(copy, piece.wav, piece.codes is not None, "", piece.cleared))
            return
        assert isinstance(copy, RemoteSequence)
        if copy.finished:  # came with PCM frames
            self._tell(hear, Heard(copy, pcm.to_wav(copy.codes[0]), True))
            return
        for frames, ended in server.speak(copy, self._connections, self._config.timeout):
            copy.codes.append(frames)
            copy.num_frames += len(frames)
            copy.ended = bool(ended)
            self._tell(hear, Heard(copy, pcm.to_wav(frames), ended is not None))

    def _hear(self, member: Member, is_reused: bool, output: Heard) -> list[Heard]:
        """Take in output, in the thread that steps the session."""
        self._chunks[self._servers[member]] += output.is_last and not is_reused and output.sequence in member.parts
        return self._pool.hear(member, output)

    def close(self) -> None:
        """Close all connections, so that servers stop. A thread still connecting ends by itself."""
        super().close()
        self._connections.close()
