"""v2's layer: Llama with DualFFN. Text and code positions share attention but have separate norms and MLPs."""

from __future__ import annotations

import torch

from ..core.codes import CODE_VOCAB, CODEBOOK_SIZE
from .config import ModelConfig
from .layers import Expert, Layer, layer_weights

SUPPORTED = {
    "": {
        "audio_adapter_type": ("dual_ffn", "dual_ffn_fast_forward"),
        "use_delay_pattern": (True,),
        "audio_embed_avg": (False,),
        "use_audio_out_self_attention": (False,),
        "use_audio_out_embed_projector": (False,),
        # The old config format excludes the two special codes, the new one includes them.
        "audio_codebook_size": (CODEBOOK_SIZE, CODE_VOCAB),
        "codebook_size": (CODEBOOK_SIZE, CODE_VOCAB),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    },
    "text_config": {
        "model_type": ("llama",),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    },
}


def recognises(config: dict) -> bool:
    """True if a config.json, in either of its formats, belongs to this family."""
    kind, text = config.get("model_type"), config.get("text_config")
    if kind is None and isinstance(text, dict):
        return "audio_adapter_type" in config
    return kind == "higgs_audio_v2" or (kind == "higgs_audio" and "audio_num_codebooks" in config)


def layer(config: ModelConfig, tensors: dict[str, torch.Tensor], index: int) -> Layer:
    """Build layer `index` from canonical tensors."""
    get, weight = layer_weights(tensors, index)
    text = Expert(get("attn_norm"), get("mlp_norm"), weight("gate_up"), weight("down"))
    code = Expert(get("audio_attn_norm"), get("audio_mlp_norm"), weight("audio_gate_up"), weight("audio_down"))
    return Layer(qkv=weight("qkv"), out=weight("o"), qk_norm=None, text=text, code=code)
