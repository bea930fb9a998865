"""Start a server, and stop it when the process is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from aiohttp import web

from ..core.config import KEY_VARIABLE, CallLimits
from ..core.errors import HiggsError
from ..engines.remote.wire import Wire
from ..engines.speech_api import SpeechAPI
from ..prompt.card import ModelCard
from ..prompt.tags import TAGS
from . import access
from .app import SpeechServer
from .chunks import wire_of_engine
from .hosts import HostNames, is_loopback
from .speaker import SpeakerThread
from .voices import VoiceFolder

_PATIENCE = 86_400.0  # seconds for open calls after the first signal; a second one ends them
_LAST_SECONDS = 5.0  # for threads after the second signal, before the process ends without them


def serve(
    engine: SpeechAPI,
    host: str,
    port: int,
    voices: Path | None,
    key: str,
    limits: CallLimits,
    tell: Callable[[str], None],
    access_log: bool = False,
    names: Iterable[str] = (),
    adapted: Mapping[str, SpeechAPI] = MappingProxyType({}),
) -> None:
    """Serve an open engine until the process is stopped. tell(line): prints a message to the user.

    access_log: write a line per call to stderr. names: as for `HostNames`. adapted: as for `SpeakerThread`; closed.

    Raises HiggsError for a public address without a key, and for an address that cannot be bound.
    """
    key = key or os.environ.get(KEY_VARIABLE, "")
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
        card = told_card(engine)
        what = speaker, VoiceFolder(voices), engine.planner.model, engine.planner.knows_tag
        server = SpeechServer(*what, limits, key, card, engine.workers, HostNames(host, names))
        try:
            with access.access_log() if access_log else contextlib.nullcontext():
                asyncio.run(_run(server, host, port, tell, end))
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            raise HiggsError(f"the server cannot use {host}:{port} ({error}). Choose another --port.") from error
    finally:
        speaker.close()
        end.cancel()


def serve_beside(engine: SpeechAPI, host: str, key: str) -> tuple[int, Wire]:
    """Serve an open engine in threads until the process ends, to our own clients. Returns a free port that it takes."""
    speaker, loop = SpeakerThread(engine, shared=True), asyncio.new_event_loop()
    server = SpeechServer(speaker, VoiceFolder(None), engine.planner.model, engine.planner.knows_tag, key=key)

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
    with _stop_signals() as asked:
        await runner.setup()
        assert runner.server is not None
        listener = None
        try:
            listener = await server.connections.listen(runner.server, host, port)
            tell(f"{server.model} at http://{host}:{port}/v1; stop with Ctrl+C")
            await asked.get()
            server.stop()
            if server.calls:
                tell(f"finishing what is being spoken ({server.calls} calls); Ctrl+C again stops at once")
        finally:
            if listener is not None:
                listener.close()
            closed, again = asyncio.ensure_future(runner.cleanup()), asyncio.ensure_future(asked.get())
            await asyncio.wait({closed, again}, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
            if not closed.done():
                end.start()
                server.connections.abort()  # their handlers are cancelled by that
            await closed


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Queue]:
    """Yield a queue with an item for each SIGINT and SIGTERM. Works on Windows too, unlike a loop's own handlers."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue()

    def ask(*_: object):
        loop.call_soon_threadsafe(asked.put_nowait, None)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def told_card(engine: SpeechAPI) -> ModelCard:
    """Return the model's card with the tags it follows, or None as `tags` if it follows all."""
    known = tuple(filter(engine.planner.knows_tag, TAGS))
    return replace(engine.planner.card, tags=None if len(known) == len(TAGS) else known)
