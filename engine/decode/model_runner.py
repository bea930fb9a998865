"""What decodes a batch: its state, the kernels for that batch size, and the executor. Knows no text."""

from __future__ import annotations

import traceback

from ..cuda.nvrtc import KernelUnavailable
from ..sequence import Sequence
from .executors import GraphError, make_executor
from .kernels.batch import BatchKernel
from .kernels.sample import SampleKernel
from .kernels.single import SingleKernel
from .prefix_cache import PrefixCache
from .state import DecodeState
from .step import prefill


class ModelRunner:
    """`rows` rows of `slots` positions, ready to step; `close` gives them back.

    Tensors come out of `pool`; captures use `streams`' stream, so that libraries are set up once for all.
    When making it fails, nothing stays. Raises torch.OutOfMemoryError.
    """

    def __init__(self, talker, config, rows: int, slots: int, pool, streams):
        self.notes: list[str] = []  # what the user should know: a capture that failed, and why
        self.state = self.executor = None
        self.talker, self.pool, self._unfused = talker, pool, ""
        try:
            with pool.allocate():
                self.state = DecodeState(talker.config, rows, slots, talker.device, talker.dtype)
                self._take_kernels(talker, config)
            pool.adopt(self.state.tensors())
            if not isinstance(self.state.fused, SingleKernel):
                pool.hold_workspaces()  # before the capture, which has their addresses inside
            self.executor = self._executor(talker, config, streams)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # tensors in them would outlive the clean-up
            self.close()
            raise

    def _take_kernels(self, talker, config):
        """Our kernels for a state of that many rows; where torch's ops serve instead, `how` says why."""
        if config.kernels == "torch" or talker.device.type != "cuda":
            return
        kind = SingleKernel if self.state.batch == 1 else BatchKernel
        try:
            self.state.fused = kind(talker, self.state)
            self.state.front = SampleKernel(talker, self.state)
        except KernelUnavailable as error:
            self._unfused = str(error)

    def _executor(self, talker, config, streams):
        """The configured executor. A step that cannot be captured runs eagerly, and the notes say why."""
        try:
            return make_executor(config.runner, talker, self.state, streams)
        except GraphError as error:
            reason = str(error).strip().splitlines()[0]
            self.notes.append(f"CUDA graphs are off for this model, so it is slower: {reason}.")
            return make_executor("eager", talker, self.state, streams)

    def prefill(self, row: int, sequence: Sequence, prefixes: PrefixCache | None = None):
        """Puts a sequence into a row, ready for its first step."""
        prefill(self.talker, self.state, row, sequence, prefixes)

    def step(self):
        """One frame for every row."""
        self.executor.step()

    def how(self) -> str:
        """In plain words, what decodes."""
        ops = self.state.fused.name if self.state.fused else "torch ops"
        if self.state.fused and not self.state.front:
            ops += ", torch ops to sample"
        why = f" ({self._unfused})" if self._unfused else ""
        return f"{ops}{why}, {'CUDA graph' if self.executor.name == 'graph' else self.executor.name}"

    def close(self):
        """Drops captures, kernel and buffers; safe to call twice. No step may be under way on the device."""
        if self.executor is not None:
            self.executor.close()
        if self.state is not None:
            for kernel in (self.state.front, self.state.fused):
                if kernel is not None:
                    kernel.close()
            self.state.front = self.state.fused = None
        self.talker = self.state = self.executor = None
