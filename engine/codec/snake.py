"""The codec's activation, x + sin(alpha * x)^2 / alpha: one CUDA kernel (snake.cu), and its torch twin."""

from __future__ import annotations

import ctypes
import pathlib

import torch

from ..cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source

THREADS = 256
SAMPLES = 4  # per thread


def snake(x, alpha, valid: int):
    """x [B, C, T], alpha [1, C, 1] -> [B, C, T] fp32, 0 from sample `valid` on."""
    wave = torch.mul(x, alpha).sin_().square_()
    out = torch.addcmul(x, wave, (alpha + 1e-9).reciprocal())
    if valid < x.shape[2]:
        out[..., valid:] = 0.0
    return out


class _Snake(ctypes.Structure):
    """`Snake` of snake.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "alpha", "out")),
        *((name, ctypes.c_int) for name in ("channels", "length", "valid", "blocks_per_row")),
    ]


class SnakeKernel:
    """`snake` in one launch instead of five. Raises KernelUnavailable if it cannot be compiled or launched."""

    def __init__(self, device: torch.device):
        if device.type != "cuda" or torch.version.hip:
            raise KernelUnavailable("it needs an NVIDIA GPU")
        major, minor = torch.cuda.get_device_capability(device)
        self._module = Module(
            compile_cubin(read_source(pathlib.Path(__file__).with_name("snake.cu")), f"{major}{minor}", ())
        )
        self._function = self._module.function("snake")
        try:
            self(torch.zeros(1, 1, 1, device=device), torch.ones(1, 1, 1, device=device), 1)
        except KernelUnavailable:
            self.close()
            raise

    def __call__(self, x, alpha, valid: int):
        """As `snake`."""
        batch, channels, length = x.shape
        x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        blocks = -(-length // (THREADS * SAMPLES))
        argument = _Snake(x.data_ptr(), alpha.data_ptr(), out.data_ptr(), channels, length, valid, blocks)
        launch(self._function, batch * channels * blocks, THREADS, argument)
        return out

    def close(self):
        """Unloads the kernel, which must not be running."""
        self._module.close()
