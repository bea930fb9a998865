"""ServerModel: servers in the place of a model. ComfyUI's memory management never hears of it: nothing is loaded."""

from __future__ import annotations

from ...engine import RemoteEngine
from .patcher import HiggsPatcher


class ServerModel:
    """Stands in for a HiggsPatcher and its HiggsModel, without weights."""

    others: tuple[HiggsPatcher, ...] = ()
    warnings: tuple[str, ...] = ()  # the engine's own stand in each result

    def __init__(self, engine: RemoteEngine):
        self.engine = engine

    @property
    def model(self) -> ServerModel:
        """Where a patcher has its model."""
        return self

    @property
    def label(self) -> str:
        """Name of the model, for the info output."""
        return self.engine.label


AnyModel = HiggsPatcher | ServerModel  # what travels through a socket for models
