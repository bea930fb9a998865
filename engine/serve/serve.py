"""Start a server, and stop it when the process is asked to."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from ..core.config import KEY_VARIABLE
from ..core.errors import HiggsError
from ..engines.speech_api import SpeechAPI
from ..prompt.card import ModelCard
from ..prompt.tags import TAGS
from .app import CallLimits, SpeechServer
from .speaker import SpeakerThread
from .voices import VoiceFolder


def serve(
    engine: SpeechAPI,
    host: str,
    port: int,
    voices: Path | None,
    key: str,
    limits: CallLimits,
    tell: Callable[[str], None],
) -> None:
    """Serve an open engine until the process is stopped. tell(line): prints a message to the user.

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
    speaker = SpeakerThread(engine)
    try:
        card = told_card(engine)
        server = SpeechServer(speaker, VoiceFolder(voices), engine.model, engine.knows_tag, limits, key, card)
        tell(f"{engine.model} at http://{host}:{port}/v1; stop with Ctrl+C")
        try:
            web.run_app(
                server.app(), host=host, port=port, print=lambda line: None, access_log=None, handler_cancellation=True
            )
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            raise HiggsError(f"the server cannot use {host}:{port} ({error}). Choose another --port.") from error
    finally:
        speaker.close()


def told_card(engine: SpeechAPI) -> ModelCard:
    """Return the model's card with the tags it follows, or None as `tags` if it follows all."""
    known = tuple(filter(engine.knows_tag, TAGS))
    return replace(engine.card, tags=None if len(known) == len(TAGS) else known)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
