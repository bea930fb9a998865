"""The codec's network, under the tensor names transformers uses. Knows no file, no windows and no audio formats.

The convolutional stacks are transformers' DAC and HuBERT blocks; the small pieces between them are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from .config import SAMPLE_RATE
from .kernels.snake import snake
from .libraries import borrow

if TYPE_CHECKING:
    from transformers import DacConfig, HubertConfig

_DAC = "transformers.models.dac.modeling_dac"  # borrowed late: transformers takes seconds to load
CODEBOOKS = 8
RATIOS = 5  # up- and downsampling blocks of the acoustic half
SEMANTIC_STRIDES = (5, 2, 2, 2, 2, 2, 2)  # HuBERT's feature convolutions; shapes do not tell strides
SEMANTIC_BLOCKS = 2  # blocks of the semantic encoder
SEMANTIC_UNITS = 2  # residual units a block
SEMANTIC_RATE = 16_000  # Hz, what HuBERT hears


@dataclass(frozen=True)
class CodecConfig:
    """Widths of the network. Everything else about it is fixed."""

    codebook_size: int
    codebook_dim: int
    acoustic_hidden: int
    encoder_hidden: int
    decoder_hidden: int
    semantic_hidden: int
    semantic_ffn: int
    semantic_layers: int
    pos_kernel: int
    pos_groups: int
    ratios: tuple[int, ...]
    conv_dims: tuple[int, ...]
    conv_kernels: tuple[int, ...]

    @property
    def name(self) -> str:
        """Tells codecs apart whose codes mean different things; the published v2 and v3 share one."""
        return f"{self.acoustic_hidden}+{self.semantic_hidden}"

    @property
    def hidden(self) -> int:
        """Channels the quantizer sees: acoustic and semantic side by side."""
        return self.acoustic_hidden + self.semantic_hidden

    @property
    def semantic_heads(self) -> int:
        """HuBERT's attention heads are 64 wide."""
        return max(1, self.semantic_hidden // 64)


def dac_config(config: CodecConfig) -> DacConfig:
    """transformers' settings for the acoustic half."""
    dac = borrow("transformers", "DacConfig")(
        encoder_hidden_size=config.encoder_hidden,
        decoder_hidden_size=config.decoder_hidden,
        downsampling_ratios=list(config.ratios),
    )
    # Derived by DacConfig for its own codec: reversed ratios, and the width of the encoder's last block.
    dac.upsampling_ratios = list(config.ratios)
    dac.hidden_size = config.acoustic_hidden
    return dac


def hubert_config(config: CodecConfig) -> HubertConfig:
    """transformers' settings for HuBERT."""
    return borrow("transformers", "HubertConfig")(**_hubert_settings(config), attn_implementation="sdpa")


def hf_config(config: CodecConfig) -> dict:
    """The config.json with which transformers' HiggsAudioV2TokenizerModel loads a codec of these widths."""
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
        "target_bandwidths": [0.5, 1, 1.5, 2],  # kbit/s; the last one makes eight codebooks of ten bits
        "codebook_size": config.codebook_size,
        "codebook_dim": config.codebook_dim,
        "acoustic_model_config": acoustic,
        "semantic_model_config": {"model_type": "hubert", **_hubert_settings(config)},
    }


def _hubert_settings(config: CodecConfig) -> dict:
    return {
        "hidden_size": config.semantic_hidden,
        "num_hidden_layers": config.semantic_layers,
        "num_attention_heads": config.semantic_heads,
        "intermediate_size": config.semantic_ffn,
        "conv_dim": list(config.conv_dims),
        "conv_kernel": list(config.conv_kernels),
        "conv_stride": list(SEMANTIC_STRIDES),
        "num_conv_pos_embeddings": config.pos_kernel,
        "num_conv_pos_embedding_groups": config.pos_groups,
        "mask_time_prob": 0.0,  # nothing is masked, hence no masked_spec_embed
    }


class Snake(nn.Module):
    """DAC's activation, by whatever computes it: torch's ops, or a kernel put in their place.

    `heard` of `frames` frames are sound and the rest is padding, which it silences. As every convolution that widens
    what a sample hears comes after one of these, padding is to the frames before it what the end of a clip is.
    """

    def __init__(self, width: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))
        self.compute = snake
        self.heard = self.frames = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return self.compute(x, self.alpha, x.shape[2] // self.frames * self.heard)


def acoustic_encoder(config: CodecConfig) -> nn.Module:
    """wav [B, 1, S] -> [B, acoustic_hidden, S / 960]."""
    return borrow(_DAC, "DacEncoder")(dac_config(config))


def acoustic_decoder(config: CodecConfig) -> nn.Module:
    """[B, acoustic_hidden, T] -> wav [B, 1, 960 * T], not limited to -1..1."""
    decoder = borrow(_DAC, "DacDecoder")(dac_config(config))
    # This codec was trained without the final tanh, and with odd strides padded so that each yields stride * T samples.
    decoder.tanh = nn.Identity()
    for block in decoder.block:
        block.conv_t1.output_padding = (block.conv_t1.stride[0] % 2,)
    for module in list(decoder.modules()):
        for name, child in list(module.named_children()):
            if name.startswith("snake"):
                setattr(module, name, Snake(child.alpha.shape[1]))
    return decoder


def semantic_model(config: CodecConfig) -> nn.Module:
    """HuBERT: 16 kHz wav [B, S] -> hidden states, 50 a second."""
    return borrow("transformers", "HubertModel")(hubert_config(config))


class SemanticUnit(nn.Module):
    """ELU, conv 3, ELU, conv 1, added to the input. Without biases."""

    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv1d(width, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))


class SemanticBlock(nn.Module):
    """Residual units, then a convolution that keeps width and rate."""

    def __init__(self, width: int):
        super().__init__()
        self.res_units = nn.ModuleList(SemanticUnit(width) for _ in range(SEMANTIC_UNITS))
        self.conv = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        for unit in self.res_units:
            x = unit(x)
        return self.conv(x)


class SemanticEncoder(nn.Module):
    """HuBERT's features [B, semantic_hidden, T] -> the same shape, fit for the quantizer."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.semantic_hidden
        self.conv = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.conv_blocks = nn.ModuleList(SemanticBlock(width) for _ in range(SEMANTIC_BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        x = self.conv(x)
        for block in self.conv_blocks:
            x = block(x)
        return x


class Codebook(nn.Module):
    """Code vectors [codebook_size, codebook_dim]."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.register_buffer("embed", torch.zeros(config.codebook_size, config.codebook_dim))

    def nearest(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, D] -> codes [B, T]
        # Squared distance written out as transformers has it: another order of the same sums breaks ties differently.
        table = self.embed.t()
        flat = x.reshape(-1, x.shape[-1])
        near = -(flat.pow(2).sum(1, keepdim=True) - 2 * flat @ table + table.pow(2).sum(0, keepdim=True))
        return near.max(dim=-1).indices.view(x.shape[:-1])


class Quantizer(nn.Module):
    """One codebook with its projections; the way in exists only where audio is encoded."""

    def __init__(self, config: CodecConfig, encodes: bool):
        super().__init__()
        self.codebook = Codebook(config)
        self.project_out = nn.Linear(config.codebook_dim, config.hidden)
        if encodes:
            self.project_in = nn.Linear(config.hidden, config.codebook_dim)

    def encode(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, hidden] -> codes [B, T]
        return self.codebook.nearest(self.project_in(x))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:  # [B, T] -> [B, T, hidden]
        return self.project_out(F.embedding(codes, self.codebook.embed))


class ResidualQuantizer(nn.Module):
    """Eight codebooks, each coding what those before it left over."""

    def __init__(self, config: CodecConfig, encodes: bool):
        super().__init__()
        self.quantizers = nn.ModuleList(Quantizer(config, encodes) for _ in range(CODEBOOKS))

    def encode(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, hidden] -> codes [B, N, T]
        codes = []
        for quantizer in self.quantizers:
            codes.append(quantizer.encode(x))
            x = x - quantizer.decode(codes[-1])
        return torch.stack(codes, dim=1)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:  # [B, N, T] -> [B, T, hidden]
        first, *rest = self.quantizers
        total = first.decode(codes[:, 0])
        for book, quantizer in enumerate(rest, start=1):
            total = total + quantizer.decode(codes[:, book])
        return total


def decoder_parts(config: CodecConfig) -> dict[str, nn.Module]:
    """What turns codes into sound, each part under the name its tensors begin with."""
    return {
        "quantizer": ResidualQuantizer(config, encodes=False),
        "fc2": nn.Linear(config.hidden, config.acoustic_hidden),
        "acoustic_decoder": acoustic_decoder(config),
    }


def encoder_parts(config: CodecConfig) -> dict[str, nn.Module]:
    """What turns sound into codes, each part under the name its tensors begin with."""
    return {
        "acoustic_encoder": acoustic_encoder(config),
        "semantic_model": semantic_model(config),
        "encoder_semantic": SemanticEncoder(config),
        "fc": nn.Linear(config.hidden, config.hidden),
        "quantizer": ResidualQuantizer(config, encodes=True),
    }
