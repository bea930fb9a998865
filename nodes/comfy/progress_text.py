"""A line of text on a node while it works."""

from __future__ import annotations

import time

from server import PromptServer

from ...engine import FRAME_RATE, duration

_OFTEN = 0.5  # seconds between two lines


def show(text: str, node_id: str) -> None:
    """Show the text on a node, if there is a server and a client."""
    server = getattr(PromptServer, "instance", None)
    client = getattr(server, "client_id", None)
    if server is not None and client is not None:  # without a client every page would get it
        server.send_progress_text(text, node_id, client)


class NodeText:
    """Text on a node, sent only when it changes. node_id: the running node by default."""

    def __init__(self, node_id: str | None = None):
        self._node = node_id or getattr(getattr(PromptServer, "instance", None), "last_node_id", None)
        self._shown = ""

    def show(self, text: str) -> None:
        if self._node is not None and text != self._shown:
            self._shown = text
            show(text, self._node)

    def end(self, text: str) -> None:
        """Show the last line, which stays on the page. Does nothing if no line was shown before."""
        if self._shown:
            self.show(text)


class TimeLeft:
    """Context that shows seconds spoken and seconds left under the running node's bar."""

    def __init__(self):
        self._text, self._began, self._shown_at, self._done = NodeText(), 0.0, 0.0, 0

    def __enter__(self) -> TimeLeft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._text.end("stopped" if kind else f"{duration(self._done / FRAME_RATE)} spoken")

    def step(self, done: int, expected: int) -> None:
        """Report the frames spoken so far and the expected total."""
        now, self._done = time.monotonic(), done
        self._began = self._began or now
        self._shown_at = self._shown_at or now
        if done and now - self._shown_at >= _OFTEN:
            self._shown_at = now
            left = (now - self._began) * max(0, expected - done) / done
            of = f"{duration(done / FRAME_RATE)} of about {duration(expected / FRAME_RATE)} spoken"
            self._text.show(f"{of}, {duration(left, 0)} left")
