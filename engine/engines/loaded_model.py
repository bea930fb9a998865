"""Everything an open engine holds on its device: weights, codec, runner and memory pools."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from collections.abc import Iterator

import torch

from ..checkpoint.codec_layout import decoder_shapes, fp32_sizes
from ..checkpoint.load import Checkpoint, keeps_bf16, load_talker, talker_sizes
from ..checkpoint.self_check import check_logits, check_weights
from ..codec.model import CONTEXT_FRAMES, build_decoder
from ..codec.snake import SnakeKernel
from ..codec.waveform import GROUPS, LENGTHS, SINGLE_LENGTHS, Waveform
from ..codec.window_graphs import WindowGraphs
from ..core.config import MAX_BATCH, EngineConfig
from ..core.sequence import Sequence
from ..core.threads import is_slow
from ..decode.kernels.batch import most_rows
from ..decode.model_runner import ModelRunner, open_runner
from ..decode.prefix_cache import PrefixCache
from ..decode.prompts import Prefill, open_prefill
from ..device.collection import uncollected
from ..device.memory import PrivatePool, device_bytes, drop, free_bytes, workspace_bytes
from ..device.torch_names import release_pinned_memory
from ..talker import build_talker
from ..talker.config import Aligned
from ..talker.rope import rope_sizes

CPU_BATCH = 8  # maximum rows on a CPU, where memory is not queried and further rows save less; half for large talkers
RESERVE = 1 << 30  # bytes a batch leaves free for prompts, codec windows, captures and other programs
PREFIXES = 4  # prompt prefixes (voice, scene) that are kept
SLOT_BLOCK = 64  # granularity of a batch's KV cache, in slots


def planned_bytes(
    checkpoint: Checkpoint,
    config: EngineConfig,
    context: int,
    device: torch.device,
    dtype: torch.dtype,
    aligned: Aligned = (),
) -> int:
    """Return the bytes that opening takes on `device`, without the step's graph. Reads headers only."""
    sizes = ModelRunner.planned_sizes(checkpoint.config, 1, context, device, dtype, config.kernels, aligned)
    sizes += Prefill.planned_sizes(checkpoint.config, device, dtype, config.kernels, config.runner)
    if device.type == "cuda" and config.runner != "eager":
        sizes.append(checkpoint.codec.config.decode_bytes(max(SINGLE_LENGTHS)))
    return _lasting_bytes(checkpoint, config, context, device, dtype) + device_bytes(sizes, device)


def _lasting_bytes(
    checkpoint: Checkpoint, config: EngineConfig, context: int, device: torch.device, dtype: torch.dtype
) -> int:
    """Return the bytes that `trim` keeps: weights, rotary tables, codec and cuBLAS workspace."""
    narrow = keeps_bf16(checkpoint, device, dtype, config.weights)
    sizes = talker_sizes(checkpoint, dtype, config.weights, narrow)
    sizes += rope_sizes(checkpoint.config, context, dtype)
    sizes += fp32_sizes(decoder_shapes(checkpoint.codec.config))
    return device_bytes(sizes, device) + workspace_bytes(device)


class LoadedModel:
    """Weights, codec, the permanent single-row runner, and their memory pool.

    Its runners keep the queries of the `aligned` heads. A failed load frees everything. Raises HiggsError for a bad
    checkpoint, and torch.OutOfMemoryError.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        context: int,
        device: torch.device,
        dtype: torch.dtype,
        aligned: Aligned = (),
    ):
        self.context = context
        self.config, self._aligned = config, aligned
        self._runner: ModelRunner | None = None
        self._prompts: Prefill | None = None
        self._windows: WindowGraphs | None = None
        self._snake: SnakeKernel | None = None
        self.pool = PrivatePool(device)
        self._make_spare(device)
        tensors: dict[str, torch.Tensor] = {}
        try:
            self._lasting_bytes = _lasting_bytes(checkpoint, config, context, device, dtype)
            narrow = keeps_bf16(checkpoint, device, dtype, config.weights)
            load_talker(checkpoint, device, dtype, config.weights, narrow, self.pool.allocate, tensors)
            check_weights(checkpoint, tensors)
            with self.pool.allocate():
                self.talker = build_talker(checkpoint.config, tensors, context)
                self.decoder = build_decoder(checkpoint.codec.config, checkpoint.codec.read("decoder", device))
            self.pool.adopt([*self.talker.tensors(), *self.decoder.parameters(), *self.decoder.buffers()])
            self._snake, reason = self.decoder.choose_kernel(config.kernels)
            self._codec_backend = f", the codec by torch ops ({reason})" if reason else ""
            self._warm_up(checkpoint, self.runner())
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # frames keep tensors alive
            drop(tensors.values())  # as do the closures of the frames' functions
            self.close()
            raise

    def _make_spare(self, device: torch.device):
        """Make a separate pool for everything `trim` frees. A pool returns memory only when destroyed."""
        self.spare = PrivatePool(device)
        self.prefixes = PrefixCache(self.spare, PREFIXES)

    def _warm_up(self, checkpoint: Checkpoint, runner: ModelRunner):
        """Check the talker's logits, and initialise libraries: CUDA's take a third of a second per process."""
        is_gpu, config = self.pool.device.type == "cuda", self.talker.config
        with contextlib.suppress(RuntimeError):  # libraries' own out-of-memory errors; speech will report them
            runner.prefill([(0, Sequence(list(range(32 if is_gpu else 8))))])
            check_logits(checkpoint, runner.state.logits[0].flatten())
            if not is_gpu:  # oneDNN compiles for each length, here that of a stream's first window
                self.decoder.decode_span(torch.zeros(1, config.codebooks, 1 + CONTEXT_FRAMES, dtype=torch.int64), 0, 1)
                return
            with contextlib.closing(Waveform(self.decoder, self.pool, self.windows())) as waveform:
                sound = waveform.sound()
                sound.push(torch.zeros(1, config.codebooks, dtype=torch.int64))
                sound.finish()
                waveform.finish()

    def describe(self, runner: ModelRunner) -> str:
        """Describe the kernels for users, with the reason if the codec's kernel is missing."""
        weights = f", {self.talker.layers[0].qkv.format} weights" if self.config.weights else ""
        return runner.describe() + weights + self._codec_backend

    @property
    def held_bytes(self) -> int:
        """Bytes on the device between calls, without the step's graph."""
        return self._lasting_bytes + self.spare_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes on the device that `trim` frees, without the step's graph."""
        parts = (self._runner, self._prompts, self._windows)
        sizes = [size for part in parts if part is not None for size in part.sizes()]
        return self.prefixes.nbytes() + device_bytes(sizes, self.pool.device)

    def keep_queries(self, aligned: Aligned) -> None:
        """Keep the queries of these heads from the next runner on. Frees what `trim` frees if they are others."""
        if aligned != self._aligned:
            self.trim()
            self._aligned = aligned

    def prompts(self) -> Prefill:
        """Return the prefill of all runners, built again after `trim`."""
        if self._prompts is None:
            self._prompts = open_prefill(self.talker, self.config.kernels, self.spare)
        return self._prompts

    def windows(self) -> WindowGraphs | None:
        """Return the captured codec windows on a GPU, built again after `trim`."""
        if self._windows is None and self.pool.device.type == "cuda":
            self._windows = WindowGraphs(self.decoder, self.pool, captures=self.config.runner != "eager")
            for length in reversed(SINGLE_LENGTHS):  # the shorter takes no more memory then
                self._windows.capture(1, length)
        return self._windows

    def runner(self) -> ModelRunner:
        """Return the single-row runner for the whole context, built again after `trim`."""
        if self._runner is None:
            self._runner = self._new_runner(1, self.context, self.spare)
        return self._runner

    def _new_runner(self, rows: int, max_seq_len: int, pool: PrivatePool) -> ModelRunner:
        prompts = self.prompts()
        return open_runner(self.talker, self.config, rows, max_seq_len, pool, self.pool, prompts, self._aligned)

    @contextlib.contextmanager
    def runner_for(self, count: int, max_seq_len: int, alone: bool = True) -> Iterator[ModelRunner]:
        """Yield a runner for `count` sequences of up to `max_seq_len` positions, and free its memory afterwards.

        It has one row per sequence, limited by free memory and the configuration. With one row, it is the single-row
        runner. alone: a single sequence may use that runner. If False, a GPU decodes it with batch kernels, because
        single-row kernels sum in a different order.
        """
        if not alone and self.pool.device.type == "cuda":
            count = max(2, count)
        max_seq_len = min(self.context, -(-max_seq_len // SLOT_BLOCK) * SLOT_BLOCK)
        made = self._make_runner(self._batch_size(count, max_seq_len), max_seq_len) if count > 1 else None
        if made is None:
            yield self.runner()
            return
        pool, runner = made
        try:
            yield runner
        finally:
            self._synchronize()
            runner.close()
            pool.close()

    def _make_runner(self, rows: int, max_seq_len: int) -> tuple[PrivatePool, ModelRunner] | None:
        """Make a runner in its own pool, halving the rows while memory runs out. None below two rows."""
        while rows > 1:
            pool = PrivatePool(self.pool.device)
            try:
                return pool, self._new_runner(rows, max_seq_len, pool)
            except torch.cuda.OutOfMemoryError:
                pool.close()
                rows //= 2
            except BaseException:
                pool.close()
                raise
        return None

    def _batch_size(self, count: int, max_seq_len: int) -> int:
        """Return the rows for `count` sequences: the fewest with as few waves as the largest batch that fits."""
        rows = min(count, self.config.batch or MAX_BATCH, most_rows(self.talker, self.config.kernels))
        device = self.pool.device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            two, three, most = (self._runner_bytes(batch, max_seq_len) for batch in (2, 3, rows))
            row = three - two
            free = self._free_bytes() - RESERVE - (most - rows * row)  # less the fixed cost of a batch
            rows = min(rows, free // row)
        else:
            is_large = is_slow(device, sum(tensor.nbytes for tensor in self.talker.tensors()))
            rows = min(rows, CPU_BATCH // 2 if is_large else CPU_BATCH)
        return math.ceil(count / math.ceil(count / rows)) if rows > 1 else 1

    def _free_bytes(self) -> int:
        free, limit = free_bytes(self.pool.device), self.config.memory
        return min(free, int(limit * 1e9) - self.held_bytes) if limit else free

    def windows_together(self) -> int:
        """Return the number of codec windows to decode at once beside a batch, as free memory allows."""
        if self.pool.device.type != "cuda":
            return 1
        free = RESERVE if self.config.memory else free_bytes(self.pool.device)
        most = (free - RESERVE // 4) // self.decoder.config.decode_bytes(max(LENGTHS))
        return next((count for count in GROUPS if count <= most), 1)

    def _runner_bytes(self, batch: int, max_seq_len: int) -> int:
        talker, kernels = self.talker, self.config.kernels
        sizes = ModelRunner.planned_sizes(
            talker.config, batch, max_seq_len, talker.device, talker.dtype, kernels, self._aligned
        )
        return sum(sizes)

    def _synchronize(self):
        if self.pool.device.type == "cuda":
            torch.cuda.synchronize(self.pool.device)

    @uncollected()  # a host may be walking a list of its models
    def trim(self) -> None:
        """Free cache, prefixes, buffers and captures, but keep the weights. The next `runner` builds them again."""
        self._synchronize()
        self.prefixes.clear()
        for part in (self._runner, self._prompts, self._windows):
            if part is not None:
                part.close()
        self._runner = self._prompts = self._windows = None
        self.spare.close()
        self._make_spare(self.pool.device)
        self.pool.trim()

    @uncollected()
    def close(self) -> None:
        """Free everything. Idempotent. Callable from any thread that holds the engine's lock."""
        self.trim()
        if self._snake is not None:
            self._snake.close()
        with contextlib.suppress(AttributeError):  # already closed, or never made
            del self.talker, self.decoder
        self.pool.close()
        if self.pool.device.type == "cuda":
            release_pinned_memory()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()
