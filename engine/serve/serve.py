"""Start a server, and stop it when the process is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from aiohttp import web

from ..core.config import KEY_VARIABLE, CallLimits
from ..core.errors import HiggsError
from ..engines.remote.wire import Wire
from ..engines.speech_api import SpeechAPI
from . import access
from .app import SpeechServer
from .chunks import wire_of_engine
from .hosts import HostNames, is_loopback
from .speaker import SpeakerThread
from .voices import VoiceFolder

_PATIENCE = 86_400.0  # seconds for open calls after the first signal; a second one ends them
_LAST_SECONDS = 5.0  # for threads after the second signal, before the process ends without them


@dataclass(frozen=True)
class ServeSettings:
    """Where and for whom a server listens. voices: folder. access_log: write a line per call to stderr.

    key: that callers must send; if empty, that of KEY_VARIABLE. names: as for `HostNames`.
    """

    host: str
    port: int
    voices: Path | None = None
    key: str = ""
    limits: CallLimits = CallLimits()
    access_log: bool = False
    names: tuple[str, ...] = ()


def serve(
    engine: SpeechAPI,
    settings: ServeSettings,
    tell: Callable[[str], None],
    adapted: Mapping[str, SpeechAPI] = MappingProxyType({}),
) -> None:
    """Serve an open engine until the process is stopped. tell(line): prints a message to the user.

    adapted: as for `SpeakerThread`; closed.

    Raises HiggsError for a public address without a key, and for an address that cannot be bound.
    """
    host, port, voices = settings.host, settings.port, settings.voices
    key = settings.key or os.environ.get(KEY_VARIABLE, "")
    if not key and not is_loopback(host):
        raise HiggsError(
            f"{host} can be reached from other machines, so callers need a key. Set one with --api-key or the "
            f"environment variable {KEY_VARIABLE}, or use --host 127.0.0.1."
        )
    if voices is not None and not voices.is_dir():
        raise HiggsError(f"{voices} is not a folder. Choose the folder with your voices, or omit --voices.")
    with contextlib.suppress(HiggsError, torch.OutOfMemoryError):  # word times are then estimated
        engine.heads()  # found now if ever, for the thread always speaks
    speaker = SpeakerThread(engine, adapted=adapted)
    end = threading.Timer(_LAST_SECONDS, os._exit, (1,))  # threads cannot be ended otherwise
    end.daemon = True
    try:
        names = HostNames(settings.host, settings.names)
        server = SpeechServer(speaker, VoiceFolder(settings.voices), engine.planner.model, settings.limits, key, names)
        try:
            with access.access_log() if settings.access_log else contextlib.nullcontext():
                asyncio.run(_run(server, host, port, tell, end))
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            raise HiggsError(f"the server cannot use {host}:{port} ({error}). Choose another --port.") from error
    finally:
        speaker.close()
        end.cancel()


def serve_beside(engine: SpeechAPI, host: str, key: str) -> tuple[int, Wire]:
    """Serve an open engine in threads until the process ends, to our own clients. Returns a free port that it takes."""
    speaker, loop = SpeakerThread(engine, shared=True), asyncio.new_event_loop()
    server = SpeechServer(speaker, VoiceFolder(None), engine.planner.model, key=key)

    async def listen() -> int:
        runner = web.AppRunner(server.app(), handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        listener = await server.connections.listen(runner.server, host, 0)
        return listener.sockets[0].getsockname()[1]

    port = loop.run_until_complete(listen())
    threading.Thread(target=loop.run_forever, name="higgs-serve", daemon=True).start()
    return port, wire_of_engine(engine)


async def _run(server: SpeechServer, host: str, port: int, tell: Callable[[str], None], end: threading.Timer):
    """Serve until a signal, then answer open calls. A second signal drops them, and starts `end`."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=_PATIENCE)
    with _stop_signals() as signals:
        await runner.setup()
        assert runner.server is not None
        listener = None
        try:
            listener = await server.connections.listen(runner.server, host, port)
            tell(f"{server.model} at http://{host}:{port}/v1; stop with Ctrl+C")
            await signals.get()
            server.stop()
            if server.calls:
                tell(f"finishing what is being spoken ({server.calls} calls); Ctrl+C again stops at once")
        finally:
            if listener is not None:
                listener.close()
            closed, again = asyncio.ensure_future(runner.cleanup()), asyncio.ensure_future(signals.get())
            await asyncio.wait({closed, again}, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
            if not closed.done():
                end.start()
                server.connections.abort()  # their handlers are cancelled by that
            await closed


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Queue]:
    """Yield a queue with an item for each SIGINT and SIGTERM. Works on Windows too, unlike a loop's own handlers."""
    loop, signals = asyncio.get_running_loop(), asyncio.Queue()

    def ask(*_: object):
        loop.call_soon_threadsafe(signals.put_nowait, None)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
