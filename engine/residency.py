"""Everything an open engine holds on its device, as one object: leaving it frees all, in reverse order of making."""

from __future__ import annotations

import sys
import traceback

import torch

from .checkpoint import Checkpoint, load_talker
from .codec import build_decoder
from .config import EngineConfig
from .kernels.fused import FusedDecode, NoCompiler
from .memory import PrivatePool
from .runners import GraphError, make_runner
from .state import DecodeState
from .talker import build_talker

BATCH_SIZES = (1, 2, 4, 8, 16)  # a captured step serves one batch size; each is captured when first needed


class Residency:
    """Weights, codec, state, runners and the pool they live in.

    Making it allocates all but the runners' own memory; when that fails, nothing stays. Raises HiggsError for a bad
    checkpoint and torch.OutOfMemoryError.
    """

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, context: int, device, dtype):
        self.notes: list[str] = []  # what the user should know: a capture that failed, and why
        self._config, self._context = config, context
        self._lanes: dict[int, tuple] = {}
        self._unfused = ""  # why the fused kernel is not used
        self.talker = self.decoder = self.state = None
        self.pool = PrivatePool(device)
        try:
            with self.pool.allocate():
                tensors = load_talker(checkpoint, device, dtype)
                self.talker = build_talker(checkpoint.config, tensors, context)
                self.decoder = build_decoder(checkpoint.codec, device)
            self.pool.adopt([*self.talker.tensors(), *self.decoder.state_dict().values()])
            self.lane(1)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # tensors in them would outlive the clean-up
            tensors = None
            self.close()
            raise

    def lane(self, rows: int) -> tuple:
        """(state, runner) for `rows` rows: the next batch size that is served, a view of the one state."""
        if self.state is None:
            self._make_state()
        sizes = [size for size in BATCH_SIZES if size < self._config.batch] + [self._config.batch]
        size = next(size for size in sizes if size >= rows)
        if size not in self._lanes:
            state = self.state.first(size)
            state.fused = self._fused(state)
            self._lanes[size] = (state, self._runner(state))
        return self._lanes[size]

    def _fused(self, state) -> FusedDecode | None:
        """The one-launch kernel for a state of one row; None where torch's ops serve, and `how` says why."""
        if self._config.kernels == "torch" or state.batch > 1 or self.pool.device.type != "cuda":
            return None
        try:
            with self.pool.allocate():
                return FusedDecode(self.talker, state)
        except NoCompiler as error:
            self._unfused = str(error)
            return None

    def how(self, rows: int) -> str:
        """In plain words, what decodes `rows` rows."""
        state, runner = self.lane(rows)
        ops = "one fused kernel" if state.fused else "torch ops"
        why = f" ({self._unfused})" if self._unfused and not state.fused else ""
        return f"{ops}{why}, {'CUDA graph' if runner.name == 'graph' else runner.name}"

    def _make_state(self):
        talker = self.talker
        with self.pool.allocate():
            self.state = DecodeState(talker.config, self._config.batch, self._context, talker.device, talker.dtype)
        self.pool.adopt(self.state.tensors())

    def trim(self):
        """Gives up the cache, the buffers and all captures; the weights stay. The next `lane` makes them anew."""
        if self.pool.device.type == "cuda":
            torch.cuda.synchronize(self.pool.device)
        for state, runner in self._lanes.values():
            runner.close()
            if state.fused is not None:
                state.fused.close()
        self._lanes.clear()
        self.state = None
        self.pool.trim()

    def _runner(self, state):
        """The configured runner. A step that cannot be captured runs eagerly, and the notes say why."""
        try:
            return make_runner(self._config.runner, self.talker, state, self.pool)
        except GraphError as error:
            reason = str(error).strip().splitlines()[0]
            self.notes.append(f"CUDA graphs are off for this model, so it is slower: {reason}.")
            return make_runner("eager", self.talker, state, self.pool)

    def close(self):
        """Frees everything; safe to call twice, and from any thread that the owner lets in."""
        self.trim()
        self.decoder = self.talker = None
        self.pool.close()

    def __del__(self):
        if not sys.is_finalizing():
            self.close()
