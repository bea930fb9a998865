"""Process placed by Ray. Serves an engine on the cluster's network to callers that have the run's key."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

from ...core.config import EngineConfig
from ...engines.engine import Engine
from ...engines.remote.wire import Wire
from ..serve import serve_beside


class About(NamedTuple):
    """Where a worker serves, its device, machine and process, and its model."""

    host: str
    port: int
    kind: str
    machine: str
    process: int
    wire: Wire


class Worker:
    """Serves an engine until its process ends. host: its machine's address in the cluster."""

    def __init__(self, config: EngineConfig, key: str, host: str):
        self._engine, self._key, self._host = Engine(config), key, host
        self._about: About | None = None

    def open(self) -> About:
        """Load the model and serve it, if it is not served yet. Raises HiggsError as `Engine.open` does."""
        if self._about is None:
            self._engine.open()
            port, wire = serve_beside(self._engine, self._host, self._key)
            self._about = About(self._host, port, self._engine.kind, platform.node(), os.getpid(), wire)
        return self._about

    def is_open(self) -> bool:
        """True if the model is served. Asked to see whether the process lives."""
        return self._about is not None
