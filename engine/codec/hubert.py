"""The codec's semantic half: HuBERT under the tensor names transformers uses. Imports no transformers.

Computes the same as HubertModel in transformers' modeling_hubert.py for the published codec: group norm after the first
convolution only, layer norm after each sum, no mask and no dropout. Tests hold both equal. It is our own because
importing theirs takes seconds. Modules are created in their order, in which tiny_codec.py draws the weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..device.torch_names import weight_norm
from .config import CodecConfig

STRIDES = (5, 2, 2, 2, 2, 2, 2)  # of the feature convolutions; weight shapes do not contain strides


class FeatureConv(nn.Module):
    """Convolution over time without bias, per-channel norm if it is the first, then GELU."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, is_first: bool):
        super().__init__()
        self.conv = nn.Conv1d(before, after, kernel, stride=stride, bias=False)
        # One group per channel, normed over the whole clip: padding would change every state.
        self.layer_norm = nn.GroupNorm(after, after) if is_first else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, before, T] -> [B, after, about T / stride]
        x = self.conv(x)
        return F.gelu(x if self.layer_norm is None else self.layer_norm(x))


class FeatureExtractor(nn.Module):
    """wav [B, 1, S] -> [B, last of conv_dims, T], one state per 320 samples."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        widths = zip((1, *config.conv_dims), config.conv_dims, config.conv_kernels, STRIDES, strict=False)
        self.conv_layers = nn.Sequential(*(FeatureConv(*sizes, is_first=i == 0) for i, sizes in enumerate(widths)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_layers(x)


class FeatureProjection(nn.Module):
    """Layer norm, then a projection to the encoder's width."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.conv_dims[-1])
        self.projection = nn.Linear(config.conv_dims[-1], config.semantic_hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C] -> [B, T, width]
        return self.projection(self.layer_norm(x))


class NormedWeight(nn.Module):
    """Weight as length [1, 1, kernel] and direction, under the names of torch's parametrizations.weight_norm.

    Published codecs store it this way. torch's own class would create a reference cycle.
    """

    def __init__(self, width: int, groups: int, kernel: int):
        super().__init__()
        self.original0 = nn.Parameter(torch.empty(1, 1, kernel))
        self.original1 = nn.Parameter(torch.empty(width, width // groups, kernel))

    def forward(self) -> torch.Tensor:  # [width, width / groups, kernel]
        return weight_norm(self.original1, self.original0)


class NormedConv(nn.Module):
    """Grouped convolution over time with a normed weight, recomputed for each clip."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width, self.groups, self.padding = config.semantic_hidden, config.pos_groups, config.pos_kernel // 2
        self.bias = nn.Parameter(torch.empty(width))
        self.parametrizations = nn.ModuleDict({"weight": NormedWeight(width, config.pos_groups, config.pos_kernel)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T] -> [B, C, T], or T + 1 if the kernel is even
        weight = self.parametrizations["weight"]()
        return F.conv1d(x, weight, self.bias, padding=self.padding, groups=self.groups)


class PositionEmbedding(nn.Module):
    """Convolutional position embedding."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.conv = NormedConv(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C]
        around = self.conv(x.transpose(1, 2))[:, :, : x.shape[1]]  # drops the extra state of an even kernel
        return F.gelu(around).transpose(1, 2)


class Attention(nn.Module):
    """Full self-attention over the states of the clip."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C]
        q, k, v = map(self._split, (self.q_proj(x), self.k_proj(x), self.v_proj(x)))  # an error keeps no closure
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C] -> [B, heads, T, C / heads]
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two projections with GELU between them."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.intermediate_dense = nn.Linear(width, inner)
        self.output_dense = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C]
        return self.output_dense(F.gelu(self.intermediate_dense(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection followed by layer norm."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.semantic_hidden
        self.attention = Attention(width, config.semantic_heads)
        self.layer_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, config.semantic_ffn)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C]
        x = self.layer_norm(x + self.attention(x))
        return self.final_layer_norm(x + self.feed_forward(x))


class HubertEncoder(nn.Module):
    """[B, T, C] -> the states before the first layer and after each one, [B, T, C] each."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.pos_conv_embed = PositionEmbedding(config)
        self.layer_norm = nn.LayerNorm(config.semantic_hidden)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.semantic_layers))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        states = [self.layer_norm(x + self.pos_conv_embed(x))]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


class SemanticModel(nn.Module):
    """HuBERT: 16 kHz wav [B, S] -> mean of all hidden states [B, T, semantic_hidden], 50 per second."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.feature_extractor = FeatureExtractor(config)
        self.feature_projection = FeatureProjection(config)
        self.encoder = HubertEncoder(config)

    def forward(self, wav: torch.Tensor) -> torch.Tensor:
        features = self.feature_extractor(wav[:, None]).transpose(1, 2)
        states = self.encoder(self.feature_projection(features))
        return torch.stack(states, dim=1).mean(dim=1)
