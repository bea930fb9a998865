"""Backend of a decode step: our CUDA kernels if they can run, else torch ops."""

from __future__ import annotations

import contextlib

import torch

from ..cuda.nvrtc import KernelUnavailable
from ..talker import Talker
from ..talker.config import ModelConfig
from .kernels.batch import BatchKernel
from .kernels.batch_product import ROW_BLOCK
from .kernels.sample import SampleKernel
from .kernels.single import SingleKernel
from .kernels.single import unfit as decode_unfit
from .state import DecodeState
from .step import sample


def planned_scratch(
    config: ModelConfig, batch: int, max_seq_len: int, device: torch.device, dtype: torch.dtype, kernels: str
) -> list[int]:
    """Return the bytes of each scratch tensor of a backend's kernels. Empty if they cannot run."""
    if kernels == "torch" or decode_unfit(config, device, dtype):
        return []
    kind = SingleKernel if batch == 1 else BatchKernel
    scratch = kind.make_scratch(config, batch, max_seq_len, torch.device("meta"))
    return [tensor.nbytes for tensor in scratch.values()]


def most_rows(talker: Talker, kernels: str) -> int:
    """Return the most rows of a batch on the talker's device."""
    if kernels != "torch" and decode_unfit(talker.config, talker.device, talker.dtype) is None:
        with contextlib.suppress(KernelUnavailable):
            return BatchKernel.most_rows(talker)
    return ROW_BLOCK


def choose_backend(talker: Talker, state: DecodeState, kernels: str) -> Backend:
    """Make the backend of a state, with its kernels' scratch. `kernels` as in EngineConfig."""
    if kernels == "torch" or talker.device.type != "cuda":
        return Backend(talker, state)
    decode = None
    try:
        decode = (SingleKernel if state.batch == 1 else BatchKernel)(talker, state)
        return Backend(talker, state, decode, SampleKernel(talker, state))
    except KernelUnavailable as error:
        return Backend(talker, state, decode, reason=str(error))
    except BaseException:
        if decode is not None:
            decode.close()
        raise


class Backend:
    """One step over a state: `sample` (logits -> codes -> delay and end -> embedding), `decode` (-> next logits).

    Both allocate nothing and never sync, so they may be captured. Without kernels they use torch ops. The sample
    kernel runs only with a decode kernel. reason: why a wanted kernel is missing.
    """

    def __init__(
        self,
        talker: Talker,
        state: DecodeState,
        decode_kernel: SingleKernel | BatchKernel | None = None,
        sample_kernel: SampleKernel | None = None,
        reason: str = "",
    ):
        self.talker, self.state = talker, state
        self._decode_kernel, self._sample_kernel, self._reason = decode_kernel, sample_kernel, reason
        state.cache.zero_empty = decode_kernel is None
        state.start_by = sample_kernel.start_row if sample_kernel else None

    @property
    def has_kernels(self) -> bool:
        """True if CUDA kernels run the talker's part of a step."""
        return self._decode_kernel is not None

    @property
    def uses_cublas(self) -> bool:
        """True if a captured step contains cuBLAS matrix products, which need cuBLAS's workspaces."""
        return not isinstance(self._decode_kernel, SingleKernel)

    def step(self) -> None:
        """Decode one frame for every row."""
        self.sample()
        self.decode()

    def sample(self) -> None:
        """Sample every row's next output from its logits, and embed it."""
        if self._sample_kernel is not None:
            self._sample_kernel.run()
        else:
            sample(self.state)
            self.talker.embed(self.state.delay.output, self.state.work)

    def decode(self) -> None:
        """Run the talker over what `sample` embedded: the next logits of every row."""
        if self._decode_kernel is not None:
            self._decode_kernel.run()
        else:
            self.talker.decode(self.state)

    def reset(self) -> None:
        """Make kernels usable again after a stalled step. No step may be running on the device."""
        if self._decode_kernel is not None:
            self._decode_kernel.reset()

    def scratch(self) -> list[torch.Tensor]:
        """Return the buffers that the kernels own."""
        return [] if self._decode_kernel is None else self._decode_kernel.tensors()

    def describe(self) -> str:
        """Return a description of the backend for users."""
        ops = self._decode_kernel.name if self._decode_kernel else "torch ops"
        if self._decode_kernel and not self._sample_kernel:
            ops += ", torch ops for sampling"
        return f"{ops} ({self._reason})" if self._reason else ops

    def close(self) -> None:
        """Unload the kernels and release everything. No step may be running on the device."""
        for kernel in (self._sample_kernel, self._decode_kernel):
            if kernel is not None:
                kernel.close()
        self._sample_kernel = self._decode_kernel = None
        with contextlib.suppress(AttributeError):  # already closed
            self.state.start_by = None
            del self.talker, self.state
