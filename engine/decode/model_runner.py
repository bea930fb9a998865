"""Lines that decode together: their state, the kernel for that many rows, and the runner. Knows no prompt, no text."""

from __future__ import annotations

import traceback

from ..cuda.nvrtc import KernelUnavailable
from .executors import GraphError, make_runner
from .kernels.batch import BatchKernel
from .kernels.sample import SampleKernel
from .kernels.single import SingleKernel
from .state import DecodeState


class Lane:
    """`rows` rows of `slots` positions, ready to step; `close` gives them back. Unpacks into (state, runner).

    Tensors come out of `pool`; captures use `streams`' stream, so that libraries set themselves up once for all lanes.
    When making it fails, nothing stays. Raises torch.OutOfMemoryError.
    """

    def __init__(self, talker, config, rows: int, slots: int, pool, streams):
        self.notes: list[str] = []  # what the user should know: a capture that failed, and why
        self.state = self.runner = None
        self.pool, self._unfused = pool, ""
        try:
            with pool.allocate():
                self.state = DecodeState(talker.config, rows, slots, talker.device, talker.dtype)
                self._take_kernels(talker, config)
            pool.adopt(self.state.tensors())
            if not isinstance(self.state.fused, SingleKernel):
                pool.hold_workspaces()  # before the capture, which has their addresses inside
            self.runner = self._runner(talker, config, streams)
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

    def _runner(self, talker, config, streams):
        """The configured runner. A step that cannot be captured runs eagerly, and the notes say why."""
        try:
            return make_runner(config.runner, talker, self.state, streams)
        except GraphError as error:
            reason = str(error).strip().splitlines()[0]
            self.notes.append(f"CUDA graphs are off for this model, so it is slower: {reason}.")
            return make_runner("eager", talker, self.state, streams)

    def __iter__(self):
        yield self.state
        yield self.runner

    def how(self) -> str:
        """In plain words, what decodes."""
        ops = self.state.fused.name if self.state.fused else "torch ops"
        if self.state.fused and not self.state.front:
            ops += ", torch ops to sample"
        why = f" ({self._unfused})" if self._unfused else ""
        return f"{ops}{why}, {'CUDA graph' if self.runner.name == 'graph' else self.runner.name}"

    def close(self):
        """Drops captures, kernel and buffers; safe to call twice. No step may be under way on the device."""
        if self.runner is not None:
            self.runner.close()
        if self.state is not None:
            for kernel in (self.state.front, self.state.fused):
                if kernel is not None:
                    kernel.close()
            self.state.front = self.state.fused = None
        self.state = self.runner = None
