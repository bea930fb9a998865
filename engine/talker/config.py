"""Shape of a talker."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.codes import CODE_VOCAB

Aligned = tuple[tuple[int, int], ...]  # (layer, head) of the heads that follow the words, sorted


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding parameters. `factor` 1 is plain RoPE; any other value uses Llama 3's scaling."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a talker, from its config.json."""

    family: str  # "v3" (Qwen3, tied code embedding) or "v2" (Llama with DualFFN)
    layout: str  # "v3", "v2" (transformers keys) or "v2-boson"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    rope: RopeConfig
    text_vocab: int
    codebooks: int = 8
    code_vocab: int = CODE_VOCAB
    max_context: int = 8192
