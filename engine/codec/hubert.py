"""The codec's semantic half: HuBERT, which is transformers'. Imports transformers only to build it.

Its tensors are listed here, so that a codec can be checked, and spoken with, where transformers cannot be imported.
"""

from __future__ import annotations

from torch import nn

from ..optional import import_optional
from .config import CodecConfig

STRIDES = (5, 2, 2, 2, 2, 2, 2)  # of the feature convolutions; shapes do not tell strides


def settings(config: CodecConfig) -> dict[str, int | float | list[int]]:
    """What HubertConfig takes for a codec of these widths."""
    return {
        "hidden_size": config.semantic_hidden,
        "num_hidden_layers": config.semantic_layers,
        "num_attention_heads": config.semantic_heads,
        "intermediate_size": config.semantic_ffn,
        "conv_dim": list(config.conv_dims),
        "conv_kernel": list(config.conv_kernels),
        "conv_stride": list(STRIDES),
        "num_conv_pos_embeddings": config.pos_kernel,
        "num_conv_pos_embedding_groups": config.pos_groups,
        "mask_time_prob": 0.0,  # nothing is masked, hence no masked_spec_embed
    }


def hubert() -> tuple[type, type]:
    """transformers' (HubertModel, HubertConfig). Raises HiggsError where they cannot be imported.

    To be called before a model is built on the meta device: libraries may compute with tensors as they are imported.
    """
    return import_optional("transformers", "HubertModel"), import_optional("transformers", "HubertConfig")


def semantic_model(config: CodecConfig) -> nn.Module:
    """HuBERT: 16 kHz wav [B, S] -> hidden states, 50 a second."""
    model, settle = hubert()
    return model(settle(**settings(config), attn_implementation="sdpa"))


def semantic_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape of everything in `semantic_model`, as transformers names and orders it."""
    width, inner, dims = config.semantic_hidden, config.semantic_ffn, config.conv_dims
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (before, after, kernel) in enumerate(zip((1, *dims), dims, config.conv_kernels, strict=False)):
        shapes[f"feature_extractor.conv_layers.{i}.conv.weight"] = (after, before, kernel)
        shapes |= _norm(f"feature_extractor.conv_layers.{i}.layer_norm", after) if i == 0 else {}
    shapes |= _norm("feature_projection.layer_norm", dims[-1])
    shapes |= _linear("feature_projection.projection", dims[-1], width)
    position = "encoder.pos_conv_embed.conv"
    shapes |= {
        f"{position}.bias": (width,),
        f"{position}.parametrizations.weight.original0": (1, 1, config.pos_kernel),
        f"{position}.parametrizations.weight.original1": (width, width // config.pos_groups, config.pos_kernel),
    }
    shapes |= _norm("encoder.layer_norm", width)
    for layer in (f"encoder.layers.{i}" for i in range(config.semantic_layers)):
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= _linear(f"{layer}.attention.{name}", width, width)
        shapes |= _norm(f"{layer}.layer_norm", width)
        shapes |= _linear(f"{layer}.feed_forward.intermediate_dense", width, inner)
        shapes |= _linear(f"{layer}.feed_forward.output_dense", inner, width)
        shapes |= _norm(f"{layer}.final_layer_norm", width)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
