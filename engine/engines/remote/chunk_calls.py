"""Calls of our own servers for codes: a chunk that is planned here, and a clip to be encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.errors import HiggsError
from ...core.sequence import Sequence as Decoded
from ...voice.clip import Wave
from ...voice.voice import Voice
from . import wire
from .connections import Answer, Broken, Connections, Response, whole_body
from .errors import Busy, Failing, Lost, error_of, failing
from .server import Server
from .wire import WirePiece

Clip = tuple[Wave, int, str | None, str]  # samples, rate, transcript, name


def spoken_by(server: Server, sequence: Decoded, connections: Connections, seconds: float) -> Iterator[WirePiece]:
    """Yield the parts of a chunk as a server speaks it. seconds: the longest silence. Raises like `Server.speak`."""
    assert server.wire
    order = wire.pack_order(sequence, server.model)
    with connections.opened(server.address, "POST", wire.CHUNK, order, seconds) as opened:
        if opened.status != 200:
            raise error_of(Answer(opened.status, opened.headers, whole_body(opened)), server.address.variable)
        while line := opened.readline(wire.MOST_HEAD):
            if piece := _piece(line, opened, server.wire.codebooks):
                yield piece
                if piece.codes is not None:
                    return
    raise Broken("closed the connection before its answer was complete.")


def _piece(line: bytes, opened: Response, codebooks: int) -> WirePiece | None:
    """Read what is behind a line. None for a sign of life."""
    if not line.endswith(b"\n"):
        raise Broken("closed the connection before its answer was complete.")
    try:
        head, size = wire.piece_sizes(line)
        data = opened.read(size) if size else b""
        if len(data) < size:
            raise Broken("closed the connection before its answer was complete.")
        if "error" in head:
            raise failing(head["error"])
        return wire.read_piece(head, data, codebooks) if "frames" in head else None
    except (Broken, Busy, Failing):
        raise
    except HiggsError as error:
        raise Failing(f"returned an answer that cannot be read: {error}") from error


def encoded_by(servers: Sequence[Server], clip: Clip, connections: Connections, seconds: float) -> Voice:
    """Return a clip as the first server that answers encodes it. Raises the last one's error, with its name."""
    wav, rate, transcript, name = clip
    order = wire.pack_clip(wav, rate, transcript)
    for server in servers:
        try:
            answer = connections.ask(server.address, "POST", wire.VOICE, order, seconds)
            if answer.status != 200:
                raise error_of(answer, server.address.variable)
            return wire.read_voice(answer.body, transcript, name)
        except (Broken, Busy, Failing, Lost) as error:
            if server is servers[-1]:
                raise type(error)(f"{server.label} {error}") from error
    raise HiggsError("There is no server to encode the clip.")
