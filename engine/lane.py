"""Lines that decode together: their state, the kernel for that many rows, and the runner. Knows no prompt, no text."""

from __future__ import annotations

import traceback

from .kernels.fused import FusedDecode, NoCompiler
from .runners import GraphError, make_runner
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
                self.state.fused = self._fused(talker, config)
            pool.adopt(self.state.tensors())
            if not isinstance(self.state.fused, FusedDecode):
                pool.hold_workspaces()  # before the capture, which has their addresses inside
            self.runner = self._runner(talker, config, streams)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # tensors in them would outlive the clean-up
            self.close()
            raise

    def _fused(self, talker, config) -> FusedDecode | None:
        """The one-launch kernel for a state of one row; None where torch's ops serve, and `how` says why."""
        if config.kernels == "torch" or self.state.batch > 1 or talker.device.type != "cuda":
            return None
        try:
            return FusedDecode(talker, self.state)
        except NoCompiler as error:
            self._unfused = str(error)
            return None

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
        ops = "one fused kernel" if self.state.fused else "torch ops"
        why = f" ({self._unfused})" if self._unfused and not self.state.fused else ""
        return f"{ops}{why}, {'CUDA graph' if self.runner.name == 'graph' else self.runner.name}"

    def close(self):
        """Drops captures, kernel and buffers; safe to call twice. No step may be under way on the device."""
        if self.runner is not None:
            self.runner.close()
        if self.state is not None and self.state.fused is not None:
            self.state.fused.close()
            self.state.fused = None
        self.state = self.runner = None
