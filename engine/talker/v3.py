"""v3's layer: Qwen3, per-head norms on queries and keys, one expert for text and codes."""

import torch

from .layers import Expert, Layer


def v3_layer(config, tensors: dict, index: int) -> Layer:
    """Layer `index` from canonical tensors. The query and key norms become one [heads + kv_heads, D] weight."""

    def get(name):
        return tensors[f"layers.{index}.{name}"]

    expert = Expert(get("attn_norm"), get("mlp_norm"), get("gate_up"), get("down"))
    norms = [get("q_norm").expand(config.heads, -1), get("k_norm").expand(config.kv_heads, -1)]
    return Layer(qkv=get("qkv"), out=get("o"), qk_norm=torch.cat(norms), text=expert, code=expert)
