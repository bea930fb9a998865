"""The codec's network, under the tensor names transformers uses.

The acoustic convolutions are in dac.py, HuBERT is in hubert.py, and the small parts between them are here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .config import CodecConfig
from .dac import AcousticDecoder, AcousticEncoder
from .hubert import SemanticModel

CODEBOOKS = 8
RATIOS = 5  # up- and downsampling blocks of the acoustic half
SEMANTIC_BLOCKS = 2  # blocks of the semantic encoder
SEMANTIC_UNITS = 2  # residual units per block
SEMANTIC_RATE = 16_000  # Hz, what HuBERT hears


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
        self.res_units = nn.Sequential(*(SemanticUnit(width) for _ in range(SEMANTIC_UNITS)))
        self.conv = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return self.conv(self.res_units(x))


class SemanticEncoder(nn.Module):
    """HuBERT's features [B, semantic_hidden, T] -> quantizer input of the same shape."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.semantic_hidden
        self.conv = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.conv_blocks = nn.Sequential(*(SemanticBlock(width) for _ in range(SEMANTIC_BLOCKS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return self.conv_blocks(self.conv(x))


class Codebook(nn.Module):
    """Code vectors [codebook_size, codebook_dim]."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.embed: torch.Tensor
        self.register_buffer("embed", torch.zeros(config.codebook_size, config.codebook_dim))

    def nearest(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, D] -> codes [B, T]
        # Squared distance in the same order of sums as in transformers: another order breaks ties differently.
        table = self.embed.t()
        flat = x.reshape(-1, x.shape[-1])
        near = -(flat.pow(2).sum(1, keepdim=True) - 2 * flat @ table + table.pow(2).sum(0, keepdim=True))
        return near.max(dim=-1).indices.view(x.shape[:-1])


class Quantizer(nn.Module):
    """One codebook with its projections. The input projection exists only for encoding."""

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
        self._books = [Quantizer(config, encodes) for _ in range(CODEBOOKS)]
        self.quantizers = nn.ModuleList(self._books)  # for the tensor names

    def encode(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, hidden] -> codes [B, K, T]
        codes = []
        for quantizer in self._books:
            codes.append(quantizer.encode(x))
            x = x - quantizer.decode(codes[-1])
        return torch.stack(codes, dim=1)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:  # [B, K, T] -> [B, T, hidden]
        first, *rest = self._books
        total = first.decode(codes[:, 0])
        for book, quantizer in enumerate(rest, start=1):
            total = total + quantizer.decode(codes[:, book])
        return total


def decoder_parts(config: CodecConfig) -> dict[str, nn.Module]:
    """Return the modules that decode codes, by the prefix of their tensors."""
    return {
        "quantizer": ResidualQuantizer(config, encodes=False),
        "fc2": nn.Linear(config.hidden, config.acoustic_hidden),
        "acoustic_decoder": AcousticDecoder(config),
    }


def encoder_parts(config: CodecConfig) -> dict[str, nn.Module]:
    """Return the modules that encode a clip, by the prefix of their tensors.

    tiny_codec.py draws their weights in this order: another order gives another codec.
    """
    return {
        "acoustic_encoder": AcousticEncoder(config),
        "semantic_model": SemanticModel(config),
        "encoder_semantic": SemanticEncoder(config),
        "fc": nn.Linear(config.hidden, config.hidden),
        "quantizer": ResidualQuantizer(config, encodes=True),
    }
