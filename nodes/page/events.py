"""Runs that pages play while a node speaks, and the events they get."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from server import PromptServer

from ..comfy import folders
from .live_sound import LiveSound

RUN = "higgs_tts.run"  # event: a node begins to speak
KEPT_RUNS, KEPT_BYTES = 32, 1 << 30  # sounds of earlier runs that can still be played
_SAID = 80  # characters of text that tell runs apart on a page
_MOST_SEED = (1 << 53) - 1  # larger integers are not exact in JavaScript

_listeners: set[str] = set()  # clients whose pages play during a run
_runs: dict[str, Run] = {}  # by id, oldest first


@dataclass(eq=False)
class Run:
    """One run of a node with a listening page."""

    client: str  # client whose page plays it
    node: str  # node id in the client's graph
    prompt: str
    workflow: str | None = None  # workflow id that the queueing page gave; None without one
    seed: int | None = None  # seed that reproduces the sound; None if the seed is not enough
    said: str = ""
    retakes: str = ""  # as the node's widget has them
    doubts: Sequence[str] = ()  # about its voices
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.queued_by = self.client  # another page takes over if this one is closed
        self.sound = LiveSound(folders.temp() / f"higgs_tts_{self.id}.pcm", self._on_change)

    def _on_change(self):
        with contextlib.suppress(RuntimeError):  # the server has ended
            PromptServer.instance.loop.call_soon_threadsafe(self._wake)

    def _wake(self):
        self.news.set()
        self.news = asyncio.Event()

    async def told(self, version: int, seconds: float, *known: int) -> dict:
        """Return `LiveSound.told(*known)`, waiting up to `seconds` while the sound is still `version`."""
        news = self.news
        if self.sound.version == version:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), seconds)
        return {**self.about(), **await asyncio.to_thread(self.sound.told, *known)}

    def about(self) -> dict:
        """Return what a page needs to find the node, and to tell its runs apart."""
        seed = self.seed if self.seed is not None and self.seed <= _MOST_SEED else None
        said = " ".join(self.said[: 2 * _SAID].split())[:_SAID]
        place = {"node": self.node, "prompt": self.prompt, "workflow": self.workflow}
        digest = zlib.crc32(self.said.encode("utf-16-le", "surrogatepass"))  # as web/js/digest.js
        fields = {"said": said, "digest": digest, "retakes": self.retakes, "doubts": list(self.doubts)}
        return {"id": self.id, **place, "seed": seed, **fields}


def listen(client: str, on: bool) -> None:
    """Set whether a client's page plays while a node speaks."""
    _listeners.intersection_update(PromptServer.instance.sockets)
    (_listeners.add if on else _listeners.discard)(client)


def run_of(run_id: str) -> Run | None:
    return _runs.get(run_id)


def runs_of(client: str, workflow: str | None = None) -> list[Run]:
    """Return the runs a page can play, oldest first: its own, and those of its open workflow whose page was closed."""
    sockets = PromptServer.instance.sockets
    for run in list(_runs.values()):
        if run.workflow is not None and run.workflow == workflow and run.client not in sockets:
            run.client = client
    return [run for run in list(_runs.values()) if run.client == client]


@contextmanager
def heard(
    seed: int | None = None, said: str = "", retakes: str = "", doubts: Sequence[str] = ()
) -> Iterator[LiveSound | None]:
    """Yield the running node's sound for the page that queued it, or None if no page listens.

    seed: the node's, if it and the other inputs reproduce the sound. said: the text, or how it begins. retakes: the
    node's. doubts: about the voices.
    """
    server = getattr(PromptServer, "instance", None)  # scripts run nodes without a server
    client, node = getattr(server, "client_id", None), getattr(server, "last_node_id", None)
    if server is not None and client not in server.sockets:  # its page was closed: another may have taken over
        client = next((run.client for run in reversed(list(_runs.values())) if run.queued_by == client), client)
    if server is None or node is None or client not in _listeners:
        yield None
        return
    prompt = getattr(server, "last_prompt_id", "")
    run = Run(client, node, prompt, _workflow_of(prompt, server), seed, said, retakes, doubts)
    _make_room()
    _runs[run.id] = run
    server.send_sync(RUN, run.about(), client)
    try:
        yield run.sound
    finally:
        run.sound.stop()  # no effect once it is complete


def tell(event: str, node_id: str, **what: object) -> None:
    """Send an event about a node to the page that queued the running prompt. Does nothing without such a page."""
    server = getattr(PromptServer, "instance", None)
    if server is None or (client := getattr(server, "client_id", None)) is None:
        return
    workflow = _workflow_of(getattr(server, "last_prompt_id", ""), server)
    server.send_sync(event, {"node": node_id, "workflow": workflow, **what}, client)


def _workflow_of(prompt: str, server: PromptServer) -> str | None:
    """Return the id of the workflow behind a running prompt. Pages send it along, to be stored in images."""
    running, _ = server.prompt_queue.get_current_queue_volatile()
    stored: object = next((item[3] for item in running if item[1] == prompt), None)
    for name in ("extra_pnginfo", "workflow", "id"):
        stored = stored.get(name) if isinstance(stored, dict) else None
    return stored if isinstance(stored, str) else None


def _make_room():
    """Drop the oldest sounds above the limits."""
    while len(_runs) >= KEPT_RUNS or sum(run.sound.size for run in _runs.values()) > KEPT_BYTES:
        _runs.pop(next(iter(_runs))).sound.close()
