"""A batch size, ready to decode: state, kernels, and the step's graph."""

from __future__ import annotations

import contextlib
import traceback

import torch

from ..core.closing import Closable
from ..core.config import EngineConfig
from ..core.sequence import Sequence
from ..cuda.kernel import choose
from ..cuda.nvrtc import KernelUnavailable
from ..device.graph import Graph, GraphError, drop_graphs
from ..device.memory import PrivatePool
from ..talker import Talker
from ..talker.config import Aligned, ModelConfig
from .kernels.batch import BatchKernel, fewer_rows
from .kernels.sample import SampleKernel
from .kernels.single import SingleKernel, unfit
from .prefix_cache import PrefixCache
from .prompts import GRAPH_BYTES, PendingFill, Prefill
from .state import DecodeState
from .step_graph import capture_step


class ModelRunner(Closable):
    """Steps the rows of a state: `sample` (logits -> codes -> delay and end -> embedding), `decode` (-> next logits).

    Both allocate nothing and never sync, so they may be captured. Without kernels they use torch ops. The sample
    kernel runs only with a decode kernel.

    rows: one of `row_counts`. A step is of the first so many rows, and all others must be done.
    prompts: prefill of all runners of the talker; by default with torch ops.
    """

    pool: PrivatePool  # of an opened runner's tensors

    def __init__(
        self,
        talker: Talker,
        state: DecodeState,
        decode_kernel: SingleKernel | BatchKernel | None = None,
        sample_kernel: SampleKernel | None = None,
        prompts: Prefill | None = None,
    ):
        self.talker, self.state, self.prompts = talker, state, prompts or Prefill(talker)
        self.notes: list[str] = []  # for the user: a failed capture, with its reason
        self.rows, self._decode_kernel, self._sample_kernel = state.batch, decode_kernel, sample_kernel
        self._fewer: dict[int, BatchKernel] = {}  # by rows, in the scratch of `_decode_kernel`
        self._reason = ""  # why a wanted kernel is missing
        self._graphs: dict[int, Graph] = {}  # by rows
        # Torch's attention then reads filled slots only, and NumPy sorts. On a GPU the host would wait for the values.
        self.on_host = state.device.type == "cpu"

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
        """Return the bytes of such a runner's tensors and further captures on `device`. Allocates nothing."""
        sizes = DecodeState(config, batch, max_seq_len, torch.device("meta"), dtype, aligned).sizes()
        if kernels == "torch" or unfit(config, device, dtype):
            return sizes
        scratch = _kernel_for(batch).make_scratch(config, batch, max_seq_len, torch.device("meta"))
        return [*sizes, *(tensor.nbytes for tensor in scratch.values()), *(GRAPH_BYTES for _ in fewer_rows(batch))]

    def sizes(self) -> list[int]:
        """Return the bytes of each tensor of state and scratch."""
        return self.state.sizes() + [tensor.nbytes for tensor in self.scratch()]

    def scratch(self) -> list[torch.Tensor]:
        """Return the buffers that the kernels own."""
        return [] if self._decode_kernel is None else self._decode_kernel.tensors()

    @property
    def has_kernels(self) -> bool:
        """True if CUDA kernels run the talker's part of a step."""
        return self._decode_kernel is not None

    @property
    def is_captured(self) -> bool:
        """True if a step is the replay of a CUDA graph."""
        return bool(self._graphs)

    @property
    def row_counts(self) -> list[int]:
        """Numbers of rows that a step may have, ascending: the fewer, the less it costs."""
        return [*self._fewer, self.state.batch]

    @property
    def uses_cublas(self) -> bool:
        """True if a captured step contains cuBLAS matrix products, which need cuBLAS's workspaces."""
        return not isinstance(self._decode_kernel, SingleKernel)

    def choose_kernels(self, wanted: str) -> None:
        """Use CUDA kernels with scratch of their own if they can run. wanted: `kernels` as in EngineConfig."""
        talker, state, device = self.talker, self.state, self.talker.device
        self._decode_kernel, self._reason = choose(wanted, device, lambda: _kernel_for(state.batch)(talker, state))
        if self._decode_kernel is not None:
            self._sample_kernel, self._reason = choose(wanted, device, lambda: SampleKernel(talker, state))
        if isinstance(whole := self._decode_kernel, BatchKernel):
            with contextlib.suppress(KernelUnavailable):  # fewer rows then cost as many more
                for rows in whole.fewer:
                    self._fewer[rows] = BatchKernel(talker, state, rows, whole.scratch)

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Replay steps as CUDA graphs from now on, replacing earlier ones. Raises GraphError if it fails."""
        drop_graphs(self._graphs)
        try:
            for rows in self.row_counts:
                self.rows = rows
                self._graphs[rows] = capture_step(self.step, self.state, stream)
        except GraphError:
            drop_graphs(self._graphs)
            raise
        finally:
            self.rows = self.state.batch

    def prefill(self, admitted: list[tuple[int, Sequence]], prefixes: PrefixCache | None = None) -> None:
        """Prefill sequences into their rows, ready for the first step."""
        self.begin(admitted, prefixes).complete()

    def begin(self, admitted: list[tuple[int, Sequence]], prefixes: PrefixCache | None = None) -> PendingFill:
        """Return the prefill of (row, sequence) pairs, to be advanced between steps of other rows."""
        return self.prompts.begin(self.state, admitted, prefixes, self.has_kernels, self.start_row)

    def start_row(self, row: int, sequence: Sequence) -> None:
        """Prepare a row for a sequence's first step. The prompt must be in the cache."""
        state = self.state
        if self._sample_kernel is None:  # CUDA kernels read no empty slots
            state.start_row(row, sequence, clear=not (self.on_host or self.has_kernels))
            return
        limit = state.limit(sequence)
        self._sample_kernel.start_row(row, len(sequence), limit, sequence.params, sequence.index)
        state.start_window(row, sequence)

    def step(self) -> None:
        """Decode one frame for each of `rows`."""
        if graph := self._graphs.get(self.rows):
            graph.replay()
        else:
            self.sample()
            self.decode()

    def sample(self) -> None:
        """Sample every row's next output from its logits, and embed it. `decode` must follow."""
        if self._sample_kernel is not None:
            self._sample_kernel.run(self.rows)
        else:
            self.state.sample(on_host=self.on_host)
            self.talker.embed(self.state.delay.output, self.state.work)

    def decode(self) -> None:
        """Run the talker over what `sample` embedded: the next logits of every row."""
        if (kernel := self._fewer.get(self.rows, self._decode_kernel)) is not None:
            kernel.run()
        else:
            cache = self.state.cache
            cache.filled = [at + 1 for at in cache.position.tolist()] if self.on_host else None
            self.talker.decode(self.state)

    def reset(self) -> None:
        """Make the runner usable again after a stalled step."""
        if self.state.device.type == "cuda":
            torch.cuda.synchronize(self.state.device)
        if isinstance(self._decode_kernel, SingleKernel):  # a batch's blocks do not wait for each other
            self._decode_kernel.reset()

    def describe(self) -> str:
        """Return a description for users: kernels or torch ops, and how a step runs."""
        how = "torch ops" if self._decode_kernel is None else self._decode_kernel.name
        if self._decode_kernel and not self._sample_kernel:
            how += ", torch ops for sampling"
        how += f" ({self._reason})" if self._reason else ""
        return f"{how}{self.prompts.describe() * self.has_kernels}, {'CUDA graph' if self.is_captured else 'eager'}"

    def _release(self) -> None:
        drop_graphs(self._graphs)
        for kernel in (self._sample_kernel, *self._fewer.values(), self._decode_kernel):
            if kernel is not None:
                kernel.close()


def open_runner(
    talker: Talker,
    config: EngineConfig,
    batch: int,
    max_seq_len: int,
    pool: PrivatePool,
    streams: PrivatePool,
    prompts: Prefill,
    aligned: Aligned = (),
) -> ModelRunner:
    """Make a runner of `batch` rows with `max_seq_len` positions.

    Tensors are allocated from `pool`. Captures use `streams`' stream, so libraries are set up once for all runners.
    `prompts` is shared by all runners of a talker. The first that captures its step captures prompts too. Steps keep
    the queries of the `aligned` heads, see KVCache.
    If it fails, nothing stays allocated. Raises torch.OutOfMemoryError if memory runs out.
    """
    runner = None
    try:
        with pool.allocate():
            size = batch, max_seq_len, talker.device, talker.dtype
            runner = ModelRunner(talker, DecodeState(talker.config, *size, aligned), prompts=prompts)
            runner.pool = pool
            runner.choose_kernels(config.kernels)
        pool.adopt([*runner.state.tensors(), *runner.scratch()])
        if runner.uses_cublas:
            pool.hold_workspaces()  # before the capture, which contains their addresses
        if config.runner == "graph" or (config.runner == "auto" and talker.device.type == "cuda"):
            _capture(runner, streams.capture_stream())
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their tensors would outlive the clean-up
        if runner is not None:
            runner.close()
        raise
    return runner


def _capture(runner: ModelRunner, stream: torch.cuda.Stream):
    """Capture the step, and then prompts. What cannot be captured runs eagerly, and the runner's notes say why."""
    try:
        runner.capture(stream)
    except GraphError as error:
        runner.notes.append(f"CUDA graphs are off for this model, so it is slower: {error}.")
        return
    if runner.has_kernels:
        runner.prompts.capture(runner.state, stream)
        runner.notes += filter(None, [runner.prompts.note])


def _kernel_for(batch: int) -> type[SingleKernel] | type[BatchKernel]:
    return SingleKernel if batch == 1 else BatchKernel
