"""The talker: a language model over codes. `FAMILIES` is the only table of differences between v2 and v3."""

from __future__ import annotations

import torch

from .config import ModelConfig
from .family import FAMILIES, Family
from .model import Talker


def build_talker(config: ModelConfig, tensors: dict[str, torch.Tensor], context: int) -> Talker:
    """Build a talker from loaded tensors (canonical names), with rotary tables for `context` positions."""
    family = FAMILIES[config.family]
    layers = [family.layer(config, tensors, index) for index in range(config.layers)]
    return Talker(config, family, tensors, layers, context)


__all__ = ["FAMILIES", "Family", "Talker", "build_talker"]
