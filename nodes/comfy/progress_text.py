"""A line of text on a node while it works. Knows ComfyUI's server."""

from __future__ import annotations

import time

from server import PromptServer

from ...engine import FRAME_RATE, duration

_OFTEN = 0.5  # seconds between two lines


def show(text: str, node_id: str) -> None:
    """Shows the text on a node, where a server runs and somebody looks."""
    server = getattr(PromptServer, "instance", None)
    client = getattr(server, "client_id", None)
    if server is not None and client is not None:  # without a client every page would get it
        server.send_progress_text(text, node_id, client)


class NodeText:
    """Show a line on a node if it is new. node_id: the running node by default."""

    def __init__(self, node_id: str | None = None):
        self._node = node_id or getattr(getattr(PromptServer, "instance", None), "last_node_id", None)
        self._shown = ""

    def show(self, text: str) -> None:
        if self._node is not None and text != self._shown:
            self._shown = text
            show(text, self._node)

    def end(self, text: str) -> None:
        """The last line, which the page leaves there; none where nothing was shown before."""
        if self._shown:
            self.show(text)


class TimeLeft:
    """Seconds spoken and seconds to wait, under the bar of the node that runs now, for as long as it is entered."""

    def __init__(self):
        self._text, self._began, self._told, self._done = NodeText(), 0.0, 0.0, 0

    def __enter__(self) -> TimeLeft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._text.end("stopped" if kind else f"{duration(self._done / FRAME_RATE)} spoken")

    def step(self, done: int, expected: int) -> None:
        """Frames spoken so far, and how many all of it will be."""
        now, self._done = time.monotonic(), done
        self._began = self._began or now
        self._told = self._told or now
        if done and now - self._told >= _OFTEN:
            self._told = now
            left = (now - self._began) * max(0, expected - done) / done
            of = f"{duration(done / FRAME_RATE)} of about {duration(expected / FRAME_RATE)} spoken"
            self._text.show(f"{of}, {duration(left, 0)} left")
