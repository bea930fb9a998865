"""Sampling, delay pattern and embedding as one CUDA kernel, and the start of a row as another (sample.cu).

Torch twins: DecodeState.sample and Talker.embed, DecodeState.start_row.
"""

from __future__ import annotations

import ctypes
import pathlib

import torch

from ...core.codes import BOC, EOC
from ...core.config import SamplingParams
from ...cuda.kernel import ANY, Arguments, CudaKernel, Limits, first_reason, options, structure
from ...cuda.nvrtc import KernelUnavailable, launch
from ...talker import FAMILIES, Talker
from ...talker.config import ModelConfig
from ..philox import ROUNDS
from ..sampler import NOISE_STREAM, Sampler
from ..state import DecodeState

SOURCE = pathlib.Path(__file__).with_name("sample.cu")
BOOL, FP32, INT64 = torch.bool, torch.float32, torch.int64

SampleArgs = structure(
    "SampleArgs",
    logits=FP32,
    inverse_temperature=FP32,
    noise_scale=FP32,
    top_p=FP32,
    repeat_limit=FP32,
    top_k_index=INT64,
    sequence_index=INT64,
    round_keys=INT64,
    prompt_length=INT64,
    max_generated=INT64,
    suppress_specials=BOOL,
    window_mask=BOOL,
    embed=ANY,
    x=ANY,
    output=INT64,
    outputs=INT64,
    history=INT64,
    num_generated=INT64,
    position=INT64,
    countdown=INT64,
    done=BOOL,
    ended=BOOL,
    finite=BOOL,
    max_seq_len=ctypes.c_int,
)
StartArgs = structure(
    "StartArgs",
    state=SampleArgs,
    inverse_temperature=ctypes.c_float,
    noise_scale=ctypes.c_float,
    top_p=ctypes.c_float,
    suppress_specials=ctypes.c_int,
    top_k_index=ctypes.c_longlong,
    sequence_index=ctypes.c_longlong,
    prompt_length=ctypes.c_longlong,
    max_generated=ctypes.c_longlong,
    row=ctypes.c_longlong,
    seed=ctypes.c_ulonglong,
)
_OF_REPEATS = {"repeat_limit", "window_mask", "history"}


def defines(config: ModelConfig, dtype: torch.dtype, window: int) -> tuple[str, ...]:
    """Return the compiler options. window: frames of v2's repetition window."""
    family = FAMILIES[config.family]
    values = {
        "CODEBOOKS": config.codebooks,
        "VOCAB": config.code_vocab,
        "BOC": BOC,
        "EOC": EOC,
        "HIDDEN": config.hidden,
        "WINDOW": window,
        "THREADS": threads(config),
        "ROUNDS": ROUNDS,
        "NOISE_STREAM": NOISE_STREAM,
        "ENDS_ON_ANY_CODEBOOK": int(family.ends_on_any_codebook),
        "RESAMPLES_REPEATS": int(family.resamples_repeats),
        "BF16": int(dtype == torch.bfloat16),
    }
    return options(values, SampleArgs, StartArgs)


def threads(config: ModelConfig) -> int:
    """Return the threads per block: one warp per codebook."""
    return 32 * config.codebooks


def unfit(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernel cannot run this model on `device`, or None."""
    own = {
        "it reads bf16 or fp32 weights only": dtype not in (torch.bfloat16, torch.float32),
        "the model's widths are not those of the published models": config.hidden % 4 != 0 or config.codebooks > 32,
    }
    return first_reason(device, own)


class SampleKernel(CudaKernel):
    """state.logits -> next codes, counters, flags and state.work.x. Raises KernelUnavailable.

    Does not update the cache's `slot`, which torch's attention reads, so it needs a decode kernel beside it.
    Allocates nothing on the device; `run` may be captured.
    """

    def __init__(self, talker: Talker, state: DecodeState):
        config, device = talker.config, talker.device
        if reason := unfit(config, device, talker.dtype):
            raise KernelUnavailable(reason)
        window = state.sampler.sizes["W"] if talker.family.resamples_repeats else 1
        self._block, self._argument = threads(config), arguments(talker, state)
        super().__init__(SOURCE, Limits.of(device).capability, defines(config, talker.dtype, window))
        self._function, self._start = (self._module.function(name) for name in ("sample_step", "start_row"))
        with self._first_launch():
            self.run(state.batch)

    def run(self, rows: int) -> None:
        """Sample the first `rows` rows."""
        launch(self._function, rows, self._block, self._argument)

    def start_row(self, row: int, length: int, limit: int, params: SamplingParams, index: int) -> None:
        """Prepare a row for its first step, after a prompt of `length` positions, with at most `limit` outputs."""
        launch(self._start, 1, self._block, start_arguments(self._argument, row, length, limit, params, index))


def start_arguments(
    state: Arguments, row: int, length: int, limit: int, params: SamplingParams, index: int
) -> Arguments:
    """Return the argument of `start_row`. state: of a step."""
    values = Sampler.row_values(params, index)
    return StartArgs.of(
        state=state, row=row, prompt_length=length, max_generated=limit, seed=params.seed & 0xFFFFFFFFFFFFFFFF, **values
    )


def arguments(talker: Talker, state: DecodeState) -> Arguments:
    """Return the kernel's argument. Its buffers must outlive it. Buffers that only v2 has are null otherwise."""
    held = {"embed": talker.embed_codes, "x": state.work.x, "logits": state.logits, "max_seq_len": state.max_seq_len}
    for part in (state.cache, state.delay, state.sampler):
        held |= {name: getattr(part, name) for name in SampleArgs.kinds if hasattr(part, name)}
    if not talker.family.resamples_repeats:
        held |= dict.fromkeys(_OF_REPEATS)
    return SampleArgs.of(**held)
