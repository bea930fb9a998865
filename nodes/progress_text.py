"""A line of text on a node while it works. Knows ComfyUI's server."""

from __future__ import annotations

from server import PromptServer


def show(text: str, node_id: str) -> None:
    """Shows the text on a node, where a server runs and somebody looks."""
    if (server := getattr(PromptServer, "instance", None)) is not None:
        server.send_progress_text(text, node_id, getattr(server, "client_id", None))
