"""v3's layer: Qwen3 with per-head norms of queries and keys, and one expert for text and codes."""

from __future__ import annotations

import torch

from ..core.codes import CODE_VOCAB
from .config import ModelConfig
from .layers import Expert, Layer, layer_weights

SUPPORTED = {
    "audio_encoder_config": {"encoder_type": ("discrete",), "use_delay_pattern": (True,), "vocab_size": (CODE_VOCAB,)},
    "text_config": {
        "model_type": ("qwen3",),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "use_sliding_window": (False,),
    },
}


def recognises(config: dict) -> bool:
    kind, text = config.get("model_type"), config.get("text_config")
    if kind is None and isinstance(text, dict):
        return text.get("model_type") == "qwen3" and "audio_encoder_config" in config
    return kind == "higgs_multimodal_qwen3"


def layer(config: ModelConfig, tensors: dict[str, torch.Tensor], index: int) -> Layer:
    """Build layer `index` from canonical tensors. The query and key norms become one [heads + kv_heads, D] weight."""
    get, weight = layer_weights(tensors, index)
    expert = Expert(get("attn_norm"), get("mlp_norm"), weight("gate_up"), weight("down"))
    norms = [get("q_norm").expand(config.heads, -1), get("k_norm").expand(config.kv_heads, -1)]
    return Layer(qkv=weight("qkv"), out=weight("o"), qk_norm=torch.cat(norms), text=expert, code=expert)
