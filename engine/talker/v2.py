"""v2's layer: Llama with DualFFN. Text and code positions share attention and differ in norms and MLP."""

from .layers import Expert, Layer


def v2_layer(config, tensors: dict, index: int) -> Layer:
    """Layer `index` from canonical tensors."""

    def get(name):
        return tensors[f"layers.{index}.{name}"]

    text = Expert(get("attn_norm"), get("mlp_norm"), get("gate_up"), get("down"))
    code = Expert(get("audio_attn_norm"), get("audio_mlp_norm"), get("audio_gate_up"), get("audio_down"))
    return Layer(qkv=get("qkv"), out=get("o"), qk_norm=None, text=text, code=code)
