"""Starts a server, and ends it when the process is asked to."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from ..engine import Engine
from ..errors import HiggsError
from .app import Limits, Server
from .speaker import Speaker
from .voices import VoiceFolder

KEY = "HIGGS_TTS_API_KEY"  # environment variable


def serve(
    engine: Engine,
    host: str,
    port: int,
    voices: Path | None,
    key: str,
    limits: Limits,
    tell: Callable[[str], None],
) -> None:
    """Serves an open engine until the process is stopped. tell(line): what a user is to know.

    Raises HiggsError for an address that others reach where there is no key, and one that cannot be had.
    """
    key = key or os.environ.get(KEY, "")
    if not key and not is_loopback(host):
        raise HiggsError(
            f"{host} can be reached from other machines, so callers must have a key. Give one with --api-key or in the "
            f"environment variable {KEY}, or serve at 127.0.0.1."
        )
    if voices is not None and not voices.is_dir():
        raise HiggsError(f"{voices} is not a folder. Give the folder of the voices, or leave --voices out.")
    model = engine.checkpoint.folder.name
    speaker = Speaker(engine)
    try:
        server = Server(speaker, VoiceFolder(voices), model, engine.knows_tag, limits, key)
        tell(f"{model} at http://{host}:{port}/v1; stop with Ctrl+C")
        try:
            web.run_app(
                server.app(), host=host, port=port, print=lambda line: None, access_log=None, handler_cancellation=True
            )
        except OSError as error:
            raise HiggsError(f"{host}:{port} cannot be served ({error}). Choose another --port.") from error
    finally:
        speaker.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
