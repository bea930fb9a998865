"""Families of checkpoints, one record each. A new family needs a record and its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..core.codes import apply_v2, apply_v3
from . import v2, v3
from .config import ModelConfig, RopeConfig
from .layers import Layer


@dataclass(frozen=True)
class Family:
    """A family's traits, grouped by the room that reads them."""

    name: str
    title: str  # name for users
    # checkpoint/
    recognises: Callable[[dict], bool]  # True if a config.json belongs to the family
    supported: dict[str, dict[str, tuple]]  # section -> setting -> allowed values; absent or null: as published
    audio_section: str  # section of config.json with the codebooks; empty: top level
    rope: RopeConfig  # as published
    norm_eps: float  # as published
    ties_head: bool  # the head may be tied to the code embedding
    config_tells_context: bool  # else config.json holds its class's default context, unrelated to the weights
    tensor_names: str  # name prefixes, for messages
    tensor_prefix: str  # prefix of the layers' tensors in a file
    nested_layout: str  # the layout whose config.json has a text_config, if the family has two
    # talker/ and its kernels
    layer: Callable[[ModelConfig, dict[str, torch.Tensor], int], Layer]  # (config, canonical tensors, index) -> layer
    dual_ffn: bool  # text and code positions have separate norms and MLPs
    qk_norm: bool  # per-head norm of queries and keys
    # decode/ and its kernels
    ends_on_any_codebook: bool  # the first codebook with EOC ends speech; else only codebook 0, after a whole frame
    closing_columns: int  # outputs at the end of speech that belong to no frame
    resamples_repeats: bool  # repetition-aware sampling
    # prompt/
    delay: Callable[[torch.Tensor], torch.Tensor]  # a clip's codes [T, K] -> its columns [n, K] in a prompt
    is_chat: bool  # a chat with a scene; else one flat prompt
    has_tags: bool  # control tags are tokens; else they are removed from the text


FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="v3",
            title="Higgs TTS 3",
            recognises=v3.recognises,
            supported=v3.SUPPORTED,
            audio_section="audio_encoder_config",
            rope=RopeConfig(1_000_000.0),
            norm_eps=1e-6,
            ties_head=True,
            config_tells_context=True,
            tensor_names="'body.' and 'tied.'",
            tensor_prefix="body.",
            nested_layout="",
            layer=v3.layer,
            dual_ffn=False,
            qk_norm=True,
            ends_on_any_codebook=False,
            closing_columns=0,
            resamples_repeats=False,
            delay=apply_v3,
            is_chat=False,
            has_tags=True,
        ),
        Family(
            name="v2",
            title="Higgs Audio v2",
            recognises=v2.recognises,
            supported=v2.SUPPORTED,
            audio_section="",
            rope=RopeConfig(500_000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192),
            norm_eps=1e-5,
            ties_head=False,
            config_tells_context=False,
            tensor_names="'model.' with 'audio_lm_head.', or 'layers.' with 'audio_codebook_embeddings.'",
            tensor_prefix="",
            nested_layout="v2-boson",
            layer=v2.layer,
            dual_ffn=True,
            qk_norm=False,
            ends_on_any_codebook=True,
            closing_columns=1,
            resamples_repeats=True,
            delay=apply_v2,
            is_chat=True,
            has_tags=False,
        ),
    )
}
