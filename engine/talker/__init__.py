"""The talker: a language model over codes. `build_talker` is the one place that tells v2 from v3."""

from .config import ModelConfig
from .layers import Expert, Layer
from .model import Talker
from .v2 import v2_layer
from .v3 import v3_layer

_LAYERS = {"v2": v2_layer, "v3": v3_layer}


def build_talker(config: ModelConfig, tensors: dict, context: int) -> Talker:
    """A talker over loaded tensors (canonical names), with rotary tables for `context` positions."""
    layers = [_LAYERS[config.family](config, tensors, index) for index in range(config.layers)]
    return Talker(config, tensors, layers, context)


__all__ = ["Expert", "Layer", "Talker", "build_talker"]
