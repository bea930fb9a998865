"""The codec's acoustic half: DAC's convolutions under the tensor names transformers uses.

Tests hold it equal to transformers' DacEncoder and DacDecoder. It is our own so that speech needs no transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from .snake import snake

SnakeOp = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]  # signature of `snake`


class Snake(nn.Module):
    """DAC's activation, computed by torch ops or by a kernel.

    lengths: int32 [B], frames of sound out of `frames`; the rest is padding and is set to 0. None: all are sound. Every
    convolution that widens the receptive field follows such an activation, so padding acts like the end of the clip.
    """

    def __init__(self, width: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, width, 1))
        self.compute: SnakeOp = snake
        self.lengths: torch.Tensor | None = None
        self.frames = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T]
        return self.compute(x, self.alpha, self.lengths, x.shape[2] // self.frames)


class ResidualUnit(nn.Module):
    """Two convolutions, each after a Snake, added to the input."""

    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.snake1 = Snake(width)
        self.conv1 = nn.Conv1d(width, width, 7, dilation=dilation, padding=3 * dilation)
        self.snake2 = Snake(width)
        self.conv2 = nn.Conv1d(width, width, 1)

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
        self.conv_t1 = nn.ConvTranspose1d(
            width, width // 2, 2 * stride, stride=stride, padding=math.ceil(stride / 2), output_padding=stride % 2
        )
        units = (ResidualUnit(width // 2, dilation) for dilation in (1, 3, 9))
        self.res_unit1, self.res_unit2, self.res_unit3 = units

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, C, T] -> [B, C / 2, stride * T]
        return self.res_unit3(self.res_unit2(self.res_unit1(self.conv_t1(self.snake1(x)))))


class AcousticEncoder(nn.Module):
    """wav [B, 1, S] -> [B, hidden, S / product of ratios]."""

    def __init__(self, width: int, hidden: int, ratios: tuple[int, ...]):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, 7, padding=3)
        self.block = nn.Sequential(*(EncoderBlock(width << i, stride) for i, stride in enumerate(ratios)))
        self.snake1 = Snake(width << len(ratios))
        self.conv2 = nn.Conv1d(width << len(ratios), hidden, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.snake1(self.block(self.conv1(x))))


class AcousticDecoder(nn.Module):
    """[B, hidden, T] -> wav [B, 1, product of ratios * T], not limited to -1..1: this codec has no final tanh."""

    def __init__(self, width: int, hidden: int, ratios: tuple[int, ...]):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, width, 7, padding=3)
        self.block = nn.Sequential(*(DecoderBlock(width >> i, stride) for i, stride in enumerate(ratios)))
        self.snake1 = Snake(width >> len(ratios))
        self.conv2 = nn.Conv1d(width >> len(ratios), 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.snake1(self.block(self.conv1(x))))
