"""Rotary embedding tables."""

from __future__ import annotations

import math

import torch

from .config import ModelConfig, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return the frequencies [head_dim / 2] fp32, with Llama 3's scaling if the factor is not 1.

    Llama 3's rule as in transformers' `_compute_llama3_parameters`: wavelengths above original_context /
    low_freq_factor are stretched by the factor, those below original_context / high_freq_factor are kept, and the band
    between is interpolated.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.factor == 1.0:
        return plain
    wavelengths = 2 * math.pi / plain
    span = rope.high_freq_factor - rope.low_freq_factor
    smooth = ((rope.original_context / wavelengths - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def rope_sizes(config: ModelConfig, context: int, dtype: torch.dtype) -> list[int]:
    """Return the bytes of each table that `rope_tables` makes for this config."""
    return 2 * [context * config.head_dim * dtype.itemsize]


def rope_tables(
    rope: RopeConfig, head_dim: int, context: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin [context, head_dim], rounded to the model's dtype as in training."""
    positions = torch.arange(context, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim)).repeat(1, 2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)
