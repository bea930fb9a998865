"""Sampling, delay pattern, embedding: one CUDA kernel (sample.cu). Its torch twin is step.sample and Talker.embed."""

from __future__ import annotations

import ctypes
import pathlib

import torch

from ...cuda.nvrtc import KernelUnavailable, Module, compile_cubin, launch, read_source
from ...talker import FAMILIES

_POINTERS = (
    "logits inverse_temperature noise_scale top_p repeat_limit top_k_index sequence_index round_keys prompt_length "
    "max_generated suppress_specials window_mask embed x output outputs history num_generated position countdown done "
    "ended finite"
).split()
_OF_REPEATS = {"repeat_limit", "window_mask", "history"}


class _SampleArgs(ctypes.Structure):
    """`SampleArgs` of sampling.cuh."""

    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), ("max_seq_len", ctypes.c_int)]


def source() -> str:
    return read_source(pathlib.Path(__file__).with_name("sample.cu"))


def defines(config, dtype: torch.dtype, window: int) -> tuple[str, ...]:
    """Compiler options; window: how many frames v2's repetition rule looks back."""
    family = FAMILIES[config.family]
    values = {
        "CODEBOOKS": config.codebooks,
        "VOCAB": config.code_vocab,
        "BOC": config.code_vocab - 2,
        "EOC": config.code_vocab - 1,
        "HIDDEN": config.hidden,
        "WINDOW": window,
        "ENDS_ON_ANY_CODEBOOK": int(family.ends_on_any_codebook),
        "RESAMPLES_REPEATS": int(family.resamples_repeats),
        "BF16": int(dtype == torch.bfloat16),
    }
    return tuple(f"-D{name}={value}" for name, value in values.items())


def unfit(config, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot serve this model here, or None."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    if dtype not in (torch.bfloat16, torch.float32):
        return "it reads bf16 or fp32 weights only"
    if config.hidden % 4 or config.codebooks > 32:
        return "the model's widths are not those of the published models"
    if torch.cuda.get_device_capability(device) < (7, 5):
        return "the GPU is older than compute capability 7.5"
    return None


class SampleKernel:
    """state.logits -> the next codes, counters, flags and state.work.x, for all rows. Raises KernelUnavailable.

    Does not update the cache's slot and empty, which torch's attention reads, so it serves only beside a kernel that
    decodes. Allocates nothing on the device; `run` may be captured.
    """

    def __init__(self, talker, state):
        config, device = talker.config, talker.device
        reason = unfit(config, device, talker.dtype)
        if reason:
            raise KernelUnavailable(reason)
        window = state.sampler.sizes["W"] if talker.family.resamples_repeats else 1
        major, minor = torch.cuda.get_device_capability(device)
        self._module = Module(compile_cubin(source(), f"{major}{minor}", defines(config, talker.dtype, window)))
        self._function = self._module.function("sample_step")
        self._grid, self._block = state.batch, 32 * config.codebooks
        self._argument = arguments(talker, state)

    def run(self):
        launch(self._function, self._grid, self._block, self._argument)

    def close(self):
        """Unloads the code."""
        self._module.close()


def arguments(talker, state) -> ctypes.Structure:
    """The kernel's argument: addresses of buffers that must outlive it, 0 for those that only v2 has."""
    buffers = {"embed": talker.embed_codes, "x": state.work.x, "logits": state.logits}
    for part in (state.cache, state.delay, state.sampler):
        buffers |= {name: getattr(part, name) for name in _POINTERS if hasattr(part, name)}
    missing = set(_POINTERS) - set(buffers)
    assert missing == (set() if talker.family.resamples_repeats else _OF_REPEATS)
    assert all(buffer.is_contiguous() for buffer in buffers.values())
    pointers = {name: buffers[name].data_ptr() if name in buffers else 0 for name in _POINTERS}
    return _SampleArgs(**pointers, max_seq_len=state.max_seq_len)
