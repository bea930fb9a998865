"""A batch size, ready to decode: KV cache and state, backend, executor."""

from __future__ import annotations

import contextlib
import traceback

import torch

from ..core.config import EngineConfig
from ..core.sequence import Sequence
from ..device.graph import GraphError
from ..device.memory import PrivatePool
from ..talker import Talker
from ..talker.config import Aligned, ModelConfig
from .backend import choose_backend, planned_scratch
from .executors import make_executor
from .prefix_cache import PrefixCache
from .prompts import PendingFill, Prefill
from .state import DecodeState


class ModelRunner:
    """`batch` rows of `max_seq_len` positions, ready to step. `close` frees them.

    Tensors are allocated from `pool`. Captures use `streams`' stream, so libraries are set up once for all runners.
    `prompts` is shared by all runners of a talker. The first that captures its step captures prompts too. Steps keep
    the queries of the `aligned` heads, see KVCache.
    If construction fails, nothing stays allocated. Raises torch.OutOfMemoryError if memory runs out.
    """

    def __init__(
        self,
        talker: Talker,
        config: EngineConfig,
        batch: int,
        max_seq_len: int,
        pool: PrivatePool,
        streams: PrivatePool,
        prompts: Prefill,
        aligned: Aligned = (),
    ):
        self.notes: list[str] = []  # for the user: a failed capture, with its reason
        self.talker, self.pool, self.prompts = talker, pool, prompts
        self._parts = contextlib.ExitStack()  # closes the parts in reverse order
        try:
            with pool.allocate():
                self.state = DecodeState(talker.config, batch, max_seq_len, talker.device, talker.dtype, aligned)
                self.backend = choose_backend(talker, self.state, config.kernels)
                self._parts.callback(self.backend.close)
            pool.adopt([*self.state.tensors(), *self.backend.scratch()])
            if self.backend.uses_cublas:
                pool.hold_workspaces()  # before the capture, which contains their addresses
            self.executor = self._executor(config.runner, streams)
            self._parts.callback(self.executor.close)
            if self.executor.name == "graph" and self.backend.has_kernels:
                prompts.capture(self.state, streams.capture_stream())
                self.notes += filter(None, [prompts.note])
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # their tensors would outlive the clean-up
            self.close()
            raise

    @staticmethod
    def planned_sizes(
        config: ModelConfig,
        batch: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        kernels: str,
        aligned: Aligned = (),
    ) -> list[int]:
        """Return the bytes of each tensor that such a runner has on `device`. Allocates nothing."""
        state = DecodeState(config, batch, max_seq_len, torch.device("meta"), dtype, aligned)
        return state.sizes() + planned_scratch(config, batch, max_seq_len, device, dtype, kernels)

    def sizes(self) -> list[int]:
        """Return the bytes of each tensor of state and scratch."""
        return self.state.sizes() + [tensor.nbytes for tensor in self.backend.scratch()]

    def _executor(self, name: str, streams: PrivatePool):
        """Make the configured executor. If the step cannot be captured, it runs eagerly and `notes` says why."""
        try:
            return make_executor(name, self.backend, streams)
        except GraphError as error:
            reason = str(error).strip().splitlines()[0]
            self.notes.append(f"CUDA graphs are off for this model, so it is slower: {reason}.")
            return make_executor("eager", self.backend, streams)

    def prefill(self, admitted: list[tuple[int, Sequence]], prefixes: PrefixCache | None = None) -> None:
        """Prefill sequences into their rows, ready for the first step."""
        self.prompts.put(self.state, admitted, prefixes, self.backend.has_kernels)

    def begin(self, admitted: list[tuple[int, Sequence]], prefixes: PrefixCache | None = None) -> PendingFill:
        """Return the prefill of (row, sequence) pairs, to be advanced between steps of other rows."""
        return self.prompts.begin(self.state, admitted, prefixes, self.backend.has_kernels)

    def step(self) -> None:
        """Decode one frame for every row."""
        self.executor.step()

    def sample(self) -> None:
        """Do the first half of a step, which gives its outputs. `decode` must follow."""
        self.backend.sample()

    def decode(self) -> None:
        """Do the second half, which gives the next step's logits."""
        self.backend.decode()

    def reset(self) -> None:
        """Make the runner usable again after a stalled step."""
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)
        self.backend.reset()

    def describe(self) -> str:
        """Return a description of the backend and executor for users."""
        how = self.backend.describe() + (self.prompts.describe() if self.backend.has_kernels else "")
        return f"{how}, {'CUDA graph' if self.executor.name == 'graph' else self.executor.name}"

    def close(self) -> None:
        """Drop captures, kernels and buffers. Safe to call twice. No step may be running on the device."""
        self._parts.close()
        with contextlib.suppress(AttributeError):  # already closed, or never made
            del self.talker, self.prompts, self.state, self.backend, self.executor
