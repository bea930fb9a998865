"""The codec's acoustic half: DAC's convolutions under the tensor names transformers uses.

Tests hold it equal to transformers' DacEncoder and DacDecoder. It is our own so that speech needs no transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .config import CodecConfig
from .snake import snake

SnakeOp = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]  # signature of `snake`


class Snake(nn.Module):
    """DAC's activation, computed by torch ops or by a kernel.

    lengths: int32 [B], frames of sound out of `frames`; the rest is padding and is set to 0. None: all are sound. Every
    convolution that widens the receptive field follows such an activation, so padding acts like the end of the clip.
    tail: frames of padding at the end of all clips, of `rate` samples each. They are set to 0, too.
    """

    def __init__(self, width: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))
        self.compute: SnakeOp = snake
        self.lengths: torch.Tensor | None = None
        self.frames = self.rate = 1
        self.tail = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T], or as for Conv
        alpha = self.alpha if x.dim() == 3 else self.alpha.unsqueeze(2)
        out = self.compute(x, alpha, self.lengths, x.shape[-1] // self.frames)
        if self.tail:
            out[..., -self.tail * self.rate :] = 0
        return out


class Conv(nn.Conv1d):
    """Convolution [B, C, T], or [B, C, 1, T] if channels are last in memory: there oneDNN takes half the time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 3:
            return super().forward(x)
        padding, dilation = (0, int(self.padding[0])), (1, self.dilation[0])
        return F.conv2d(x, self.weight.unsqueeze(2), self.bias, padding=padding, dilation=dilation)


class TransposedConv(nn.ConvTranspose1d):
    """Transposed convolution of a tensor as for Conv."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 3:
            return super().forward(x)
        steps = ((1, self.stride[0]), (0, int(self.padding[0])), (0, self.output_padding[0]))
        return F.conv_transpose2d(x, self.weight.unsqueeze(2), self.bias, *steps)


def put_channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions as they are needed if channels are last."""
    for part in module.modules():
        if isinstance(part, Conv | TransposedConv):
            weight = part.weight.data.unsqueeze(2)
            part.weight.data = weight.contiguous(memory_format=torch.channels_last).squeeze(2)


class ResidualUnit(nn.Module):
    """Two convolutions, each after a Snake, added to the input."""

    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.snake1 = Snake(width)
        self.conv1 = Conv(width, width, 7, dilation=dilation, padding=3 * dilation)
        self.snake2 = Snake(width)
        self.conv2 = Conv(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return x + self.conv2(self.snake2(self.conv1(self.snake1(x))))


class EncoderBlock(nn.Module):
    """Residual units, then a convolution that doubles the width and divides the rate by `stride`."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.res_unit1, self.res_unit2, self.res_unit3 = (ResidualUnit(width, dilation) for dilation in (1, 3, 9))
        self.snake1 = Snake(width)
        self.conv1 = nn.Conv1d(width, 2 * width, 2 * stride, stride=stride, padding=math.ceil(stride / 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T] -> [B, 2 C, T / stride]
        return self.conv1(self.snake1(self.res_unit3(self.res_unit2(self.res_unit1(x)))))


class DecoderBlock(nn.Module):
    """Transposed convolution that halves the width and multiplies the rate by `stride`, then residual units."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.snake1 = Snake(width)
        # transformers' codec pads odd strides so that each yields exactly stride * T samples; plain DAC does not.
        self.conv_t1 = TransposedConv(
            width, width // 2, 2 * stride, stride=stride, padding=math.ceil(stride / 2), output_padding=stride % 2
        )
        units = (ResidualUnit(width // 2, dilation) for dilation in (1, 3, 9))
        self.res_unit1, self.res_unit2, self.res_unit3 = units

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T] -> [B, C / 2, stride * T]
        return self.res_unit3(self.res_unit2(self.res_unit1(self.conv_t1(self.snake1(x)))))


class AcousticEncoder(nn.Module):
    """wav [B, 1, S] -> [B, acoustic_hidden, S / 960]."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width, ratios = config.encoder_hidden, config.ratios
        self.conv1 = nn.Conv1d(1, width, 7, padding=3)
        self.block = nn.Sequential(*(EncoderBlock(width << i, stride) for i, stride in enumerate(ratios)))
        self.snake1 = Snake(width << len(ratios))
        self.conv2 = nn.Conv1d(width << len(ratios), config.acoustic_hidden, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.snake1(self.block(self.conv1(x))))


class AcousticDecoder(nn.Module):
    """[B, acoustic_hidden, T] -> wav [B, 1, 960 * T], not limited to -1..1: this codec has no final tanh.

    Or with one more dimension, see Conv.
    """

    def __init__(self, config: CodecConfig):
        super().__init__()
        width, ratios = config.decoder_hidden, config.ratios
        self.conv1 = Conv(config.acoustic_hidden, width, 7, padding=3)
        self.block = nn.Sequential(*(DecoderBlock(width >> i, stride) for i, stride in enumerate(ratios)))
        self.snake1 = Snake(width >> len(ratios))
        self.conv2 = Conv(width >> len(ratios), 1, 7, padding=3)
        self._strides, self._needed = ratios, _needed(ratios)
        rate = 1
        for block, stride in zip(self.block, ratios, strict=True):
            for name, part in block.named_modules():
                if isinstance(part, Snake):
                    part.rate = rate if name == "snake1" else rate * stride
            rate *= stride
        self.snake1.rate = rate

    def forward(self, x: torch.Tensor, before: int = 0, after: int = 0) -> torch.Tensor:
        """before, after: frames at either end that are context, and whose sound is not returned."""
        x = self.conv1(x)
        for block, stride, context in zip(self.block, self._strides, self._needed, strict=False):
            x, before, after = _cut(x, before, after, context)
            x, before, after = block(x), before * stride, after * stride
        x, before, after = _cut(x, before, after, self._needed[-1])
        return _cut(self.conv2(self.snake1(x)), before, after, 0)[0]


def _needed(strides: tuple[int, ...]) -> list[int]:
    """Return the context that each decoder block's input needs on either side, and that of the last convolution."""
    needed = [3]
    for stride in reversed(strides):
        after_transposed = needed[0] + 3 * (1 + 3 + 9)  # the residual units' convolutions
        needed.insert(0, (after_transposed + 2 * stride - 1 - math.ceil(stride / 2)) // stride)
    return needed


def _cut(x: torch.Tensor, before: int, after: int, needed: int) -> tuple[torch.Tensor, int, int]:
    """Cut context off x [..., T] until `needed` is left of it on either side. Returns what is left."""
    left, right = max(0, before - needed), max(0, after - needed)
    return x[..., left : x.shape[-1] - right], before - left, after - right
