"""Start a server, and stop it when the process is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from aiohttp import web

from ..audio.mastering import AS_IS
from ..core.config import FRAME_RATE, KEY_VARIABLE, CallLimits, SamplingParams
from ..core.errors import HiggsError
from ..engines.remote.wire import Wire
from ..engines.speech_api import SpeechAPI
from ..voice.voice import Voice
from . import access
from .app import SpeechServer
from .calls import DEFAULT_VOICE
from .chunks import wire_of_engine
from .clips import CallVoices
from .errors import FAILURES, LOG
from .hosts import HostNames, is_loopback
from .speaker import SpeakerThread, SpeechJob
from .voices import VoiceFolder

_PATIENCE = 86_400.0  # seconds for open calls after the first signal; a second one ends them
_LAST_SECONDS = 5.0  # for threads after the second signal, before the process ends without them


@dataclass(frozen=True)
class ServeSettings:
    """Where and for whom a server listens. voices: folder. access_log: write a line per call to stderr.

    key: that callers must send; if empty, that of KEY_VARIABLE. names: as for `HostNames`.
    loudness: of answers that are sent whole, one of TARGETS.
    """

    host: str
    port: int
    voices: Path | None = None
    key: str = ""
    limits: CallLimits = CallLimits()
    access_log: bool = False
    names: tuple[str, ...] = ()
    loudness: str = AS_IS


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
        names, folder = HostNames(host, settings.names), VoiceFolder(voices)
        model, limits = engine.planner.model, settings.limits
        server = SpeechServer(speaker, folder, model, limits, key, names, settings.loudness)
        try:
            with access.access_log() if settings.access_log else contextlib.nullcontext():
                asyncio.run(_run(server, partial(warm_up, speaker, folder), settings, tell, end))
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            raise HiggsError(f"the server cannot use {host}:{port} ({error}). Choose another --port.") from error
    finally:
        gc.unfreeze()
        speaker.close()
        end.cancel()


def serve_beside(engine: SpeechAPI, host: str, key: str) -> tuple[int, Wire]:
    """Serve an open engine in threads until the process ends, to our own clients. Returns a free port that it takes."""
    speaker, voices, loop = SpeakerThread(engine, shared=True), VoiceFolder(None), asyncio.new_event_loop()
    server = SpeechServer(speaker, voices, engine.planner.model, key=key)

    async def listen() -> int:
        runner = web.AppRunner(server.app(), handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        listener = await server.connections.listen(runner.server, host, 0, partial(warm_up, speaker, voices))
        return listener.sockets[0].getsockname()[1]

    port = loop.run_until_complete(listen())
    threading.Thread(target=loop.run_forever, name="higgs-serve", daemon=True).start()
    return port, wire_of_engine(engine)


async def warm_up(speaker: SpeakerThread, folder: VoiceFolder) -> None:
    """Speak a second in the default voice, so that no caller waits for memory, captures, kernels or that voice.

    Raises what speaking raises. A default voice that cannot be used is logged.
    """
    voices: dict[str, Voice] = {}
    try:
        if voice := await CallVoices(speaker, folder).named(DEFAULT_VOICE):
            voices[""] = voice
    except FAILURES as error:
        LOG.warning("The voice %r cannot be used: %s", DEFAULT_VOICE, error)
    spoken: Future[object] = Future()
    spoken.set_running_or_notify_cancel()  # so that it cannot be cancelled
    params = SamplingParams(max_frames=FRAME_RATE, retries=0)
    speaker.speak(SpeechJob("Ready.", spoken.set_result, voices, params, hear=lambda wav: None))
    if isinstance(ended := await asyncio.wrap_future(spoken), BaseException):
        raise ended
    gc.collect()
    gc.freeze()  # a full collection of an engine's 200,000 objects would hold all streams for a fifth of a second


async def _run(
    server: SpeechServer,
    get_ready: Callable[[], Awaitable[None]],
    settings: ServeSettings,
    tell: Callable[[str], None],
    end: threading.Timer,
):
    """Serve until a signal, then answer open calls. A second signal drops them, and starts `end`."""
    host, port = settings.host, settings.port
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=_PATIENCE)
    with _stop_signals() as signals:
        await runner.setup()
        assert runner.server is not None
        began, listener, stopping = time.monotonic(), None, asyncio.ensure_future(signals.get())
        opening = asyncio.ensure_future(server.connections.listen(runner.server, host, port, get_ready))
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                listener = opening.result()
                ready = f"ready after {time.monotonic() - began:.1f} s"
                tell(f"{server.model} at http://{host}:{port}/v1, {ready}; stop with Ctrl+C")
                await stopping
            server.stop()
            if server.calls:
                tell(f"finishing what is being spoken ({server.calls} calls); Ctrl+C again stops at once")
        finally:
            opening.cancel()
            stopping.cancel()
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
    """Yield a queue with an item for each signal to stop. Works on Windows too, unlike a loop's own handlers.

    There, SIGBREAK also comes when the console is closed.
    """
    loop, signals = asyncio.get_running_loop(), asyncio.Queue()

    def ask(*_: object):
        loop.call_soon_threadsafe(signals.put_nowait, None)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
