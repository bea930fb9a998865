"""A small codec with random weights for tests, under the names of both published formats."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..checkpoint.codec_layout import (
    DIRECTION,
    HF_TO_OLD,
    LENGTH,
    POSITION,
    decoder_shapes,
    encoder_shapes,
    unused_shapes,
)
from ..codec.config import CodecConfig
from ..codec.hubert import STRIDES
from ..codec.model import build_decoder
from ..codec.modules import CODEBOOKS, SEMANTIC_RATE
from ..core.codes import CODEBOOK_SIZE
from ..core.config import SAMPLE_RATE

TINY = CodecConfig(
    codebook_size=CODEBOOK_SIZE,
    codebook_dim=8,
    acoustic_hidden=16,
    encoder_hidden=2,
    decoder_hidden=64,
    semantic_hidden=64,
    semantic_ffn=64,
    semantic_layers=2,
    pos_kernel=16,
    pos_groups=4,
    ratios=(8, 5, 4, 2, 3),
    conv_dims=(8,) * 7,
    conv_kernels=(10, 3, 3, 3, 3, 2, 2),
)


_TINY_LOUDNESS = 0.12  # RMS of the tiny codec's output


def tiny_codec(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a small random codec with every tensor of a published one, under canonical names. It decodes to noise."""
    random = torch.Generator().manual_seed(seed)
    shapes = {**encoder_shapes(TINY), **decoder_shapes(TINY), **unused_shapes(TINY)}
    del shapes["semantic_model.masked_spec_embed"]
    tensors = {name: _random(name, shape, random) for name, shape in shapes.items()}
    for name in [name for name in tensors if name.endswith(".embed")]:
        tensors[f"{name}_avg"] = tensors[name] * 4.5  # as published: a reader that takes it for embed gets noise
    decoder = build_decoder(TINY, {name: tensors[name] for name in decoder_shapes(TINY)})
    wav = decoder.decode(torch.randint(CODEBOOK_SIZE, (1, CODEBOOKS, 100), generator=random))
    out, scale = "acoustic_decoder.conv2", _TINY_LOUDNESS / wav.std()
    tensors[f"{out}.bias"] = (tensors[f"{out}.bias"] - wav.mean()) * scale
    tensors[f"{out}.weight"] = tensors[f"{out}.weight"] * scale
    return tensors


def _random(name: str, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=random)
    module, _, leaf = name.rpartition(".")
    if leaf == "alpha" or (leaf == "weight" and module.endswith("layer_norm")):
        return 1 + 0.1 * noise
    if leaf in ("cluster_size", "inited"):
        return torch.ones(shape)
    if leaf in ("weight", "original1"):
        # Small gains keep residual sums level. All others preserve the scale of their input.
        gain = 0.3 if "project_out" in name or ("res_unit" in name and module.endswith("conv2")) else 1.0
        return noise * gain / math.prod(shape[1:]) ** 0.5
    return {"bias": 0.05 * noise, "original0": noise.abs()}.get(leaf, noise)


def hf_config(config: CodecConfig) -> dict:
    """Return a config.json with which transformers' HiggsAudioV2TokenizerModel loads a codec of these widths."""
    acoustic = {
        "model_type": "dac",
        "encoder_hidden_size": config.encoder_hidden,
        "decoder_hidden_size": config.decoder_hidden,
        "hidden_size": config.acoustic_hidden,
        "downsampling_ratios": list(config.ratios),
        "upsampling_ratios": list(config.ratios),
    }
    return {
        "architectures": ["HiggsAudioV2TokenizerModel"],
        "model_type": "higgs_audio_v2_tokenizer",
        "dtype": "float32",
        "sample_rate": SAMPLE_RATE,
        "semantic_sample_rate": SEMANTIC_RATE,
        "target_bandwidths": [0.5, 1, 1.5, 2],  # kbit/s; the last makes eight codebooks of ten bits
        "codebook_size": config.codebook_size,
        "codebook_dim": config.codebook_dim,
        "acoustic_model_config": acoustic,
        "semantic_model_config": {"model_type": "hubert", **hubert_settings(config)},
    }


def hubert_settings(config: CodecConfig) -> dict[str, int | float | list[int]]:
    """Return transformers' HubertConfig settings for a codec of these widths."""
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


def to_old(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert canonical tensors to the old `model.pth` names, with weight-normed acoustic convolutions."""
    old = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        module = HF_TO_OLD.get(module, module)
        if name in (POSITION + DIRECTION, POSITION + LENGTH):
            old[POSITION + (".weight_v" if name.endswith(DIRECTION) else ".weight_g")] = tensor
        elif name.startswith("acoustic_") and leaf == "weight":
            axes = tuple(range(1, tensor.dim()))
            old[f"{module}.weight_g"] = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
            old[f"{module}.weight_v"] = tensor * 2  # only its direction counts; a reader that skips _g is caught
        else:
            old[f"{module}.{leaf}"] = tensor
    return old
