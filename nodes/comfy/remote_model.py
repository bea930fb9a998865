"""ServerModel: speech servers in place of a model. ComfyUI's memory management is not involved: nothing is loaded."""

from __future__ import annotations

from ...engine import RemoteEngine
from .patcher import HiggsPatcher


class ServerModel:
    """The attributes of HiggsPatcher and HiggsModel that nodes read, as far as they apply without weights."""

    others: tuple[HiggsPatcher, ...] = ()
    warnings: tuple[str, ...] = ()  # the engine's own warnings are in each result

    def __init__(self, engine: RemoteEngine):
        self.engine = engine

    @property
    def model(self) -> ServerModel:
        """Return itself, where a patcher has its model."""
        return self

    @property
    def label(self) -> str:
        """Name of the model, for the info output."""
        return self.engine.label


AnyModel = HiggsPatcher | ServerModel  # type that model sockets carry
