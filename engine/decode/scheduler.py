"""Which sequence decodes in which row, and when: admits, steps, collects."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Iterable, Iterator

import torch

from ..core.codes import frames_ready, revert
from ..core.errors import HiggsError
from ..core.sequence import Sequence, next_fair
from .model_runner import ModelRunner
from .prefix_cache import PrefixCache

CHECK_EVERY = 4  # steps between two copies of what the device has written

Outputs = list[tuple[Sequence, torch.Tensor]]  # frames [t, K] of a sequence that became final; t may be 0 at its end


class Scheduler:
    """Decodes sequences by continuous batching: a row whose sequence has finished takes the next that waits.

    Iterate over it: after every prompt and every step it yields what became final. `add` takes more sequences while it
    runs, and `drop` takes any of them out: nothing of it comes any more, and its row is free at the next step. What a
    sequence says depends on its prompt, its index and its parameters, not on its row or its neighbours.

    Outputs are copied asynchronously and read one check later, so the host never waits for the latest step. A row that
    has ended may therefore step on for a few frames; they are not counted.

    low_latency_frames: decode the first sequence alone, and read as soon as it can have that many frames, until it has
    them. prefixes: a PrefixCache. A sequence whose logits hold NaN or an infinity, or whose prompt finds no memory,
    finishes with an `error`; the others go on. Raises HiggsError when the blocks of a kernel waited for each other in
    vain.
    """

    def __init__(
        self,
        runner: ModelRunner,
        sequences: Iterable[Sequence] = (),
        prefixes: PrefixCache | None = None,
        low_latency_frames: int = 0,
    ):
        self._runner, self._state, self._prefixes = runner, runner.state, prefixes
        self.low_latency_frames = low_latency_frames
        self.waiting: deque[Sequence] = deque(sequences)
        self.running: list[Sequence | None] = [None] * self._state.batch  # by row
        self.num_steps = self._copied = 0  # steps so far, and those whose outputs are copied or being copied
        self._copies: deque = deque()  # under way to the host
        self.unread = 1 if self._state.device.type == "cuda" else 0  # copies that may stay unread

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lets go of all that is on the device: an exception that ends the call refers to this object for longer."""
        with contextlib.suppress(AttributeError):  # left before
            del self._runner, self._state, self._prefixes
        self._copies.clear()

    def add(self, *sequences: Sequence) -> None:
        """Queues sequences after those that wait."""
        self.waiting.extend(sequences)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out, waiting or running. What was read of it stays in it; it is finished, and not ended."""
        sequence.finished = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            row = self.running.index(sequence)
            self.running[row] = None
            self._state.delay.done[row] = True

    @property
    def is_busy(self) -> bool:
        """True if any row decodes a sequence."""
        return any(sequence is not None for sequence in self.running)

    def __iter__(self) -> Iterator[Outputs]:
        self._state.delay.done.fill_(True)
        while self.waiting or self.is_busy:
            yield from self._admit()
            if self.is_busy:  # else all that were admitted have been dropped since
                self._runner.step()
                self.num_steps += 1
                yield self._collect() if self._is_time() else []

    def _is_time(self) -> bool:
        if self.low_latency_frames:  # none can be there sooner
            return self._ready(self.num_steps, False, False) >= self.low_latency_frames
        return self.num_steps - self._copied >= CHECK_EVERY

    def _admit(self) -> Iterator[Outputs]:
        """Prefills some of the waiting sequences into free rows.

        The host takes longer to launch a prompt than the device takes for a step. So where half of the rows decode, one
        comes at every other step, and the device has work meanwhile; until then two come before every step.
        """
        is_filling = 2 * self.running.count(None) > len(self.running)
        for _ in range(2 if is_filling else self.num_steps % 2):
            if not self.waiting or None not in self.running or (self.low_latency_frames and self.is_busy):
                return
            row = self.running.index(None)
            sequence = next_fair(self.waiting, filter(None, self.running))
            try:
                self._runner.prefill(row, sequence, self._prefixes)
            except torch.cuda.OutOfMemoryError as error:
                traceback.clear_frames(error.__traceback__)  # tensors in them would outlive the sequence
                yield [self._fail(sequence, error.with_traceback(None))]
            else:
                self.running[row] = sequence
                yield []

    def _collect(self) -> Outputs:
        """Starts a copy of what the steps since the last one wrote, and reads those that are due."""
        self._start_copy()
        outputs: Outputs = []
        while len(self._copies) > (0 if self.low_latency_frames else self.unread):
            outputs += self._read()
        return outputs

    def _start_copy(self):
        """The outputs emitted since the last copy, and the counters, to the host."""
        state, delay, steps = self._state, self._state.delay, self.num_steps - self._copied
        self._copied = self.num_steps
        ages = torch.arange(steps, device=state.device)
        index = (delay.num_generated - steps).clamp_(min=0).add_(delay.output_base).unsqueeze(1) + ages
        fresh = delay.outputs.flatten(0, 1).index_select(0, index.flatten()).view(state.batch, steps, -1)
        flags = (delay.done, delay.ended, state.sampler.finite, state.work.stalled.expand(state.batch))
        counters = torch.stack([delay.num_generated, *(flag.long() for flag in flags)])
        event = None
        if state.device.type == "cuda":
            fresh, counters = _to_host(fresh), _to_host(counters)
            event = torch.cuda.Event()
            event.record()
        self._copies.append((tuple(self.running), fresh, counters, event))

    def _read(self) -> Outputs:
        """Outputs that the oldest copy completes.

        The copy knows whose sequence each row decoded when it was made; a row may have got another one since.
        """
        owners, fresh, counters, event = self._copies.popleft()
        if event is not None:
            event.synchronize()
        outputs: Outputs = []
        for row, (num_generated, done, ended, finite, stalled) in enumerate(counters.t().tolist()):
            sequence = owners[row]
            if stalled:
                raise self._stalled()
            if sequence is None or sequence.finished:
                continue
            if not finite:
                outputs.append(self._fail(sequence, self._not_finite()))
                continue
            start = sequence.num_generated - max(0, num_generated - fresh.shape[1])
            new = fresh[row, start : start + num_generated - sequence.num_generated]
            sequence.num_generated, sequence.finished, sequence.ended = num_generated, bool(done), bool(ended)
            frames = self._take(sequence, new)
            if sequence.num_frames >= self.low_latency_frames or sequence.finished:
                self.low_latency_frames = 0
            if sequence.finished:
                self.running[row] = None
            if len(frames) or sequence.finished:
                outputs.append((sequence, frames))
        return outputs

    def _fail(self, sequence: Sequence, error: BaseException) -> tuple[Sequence, torch.Tensor]:
        """The last output of a sequence that cannot go on."""
        self.drop(sequence)
        sequence.error, self.low_latency_frames = error, 0
        return sequence, torch.empty(0, self._state.config.codebooks, dtype=torch.int64)

    def _not_finite(self) -> HiggsError:
        """Why speech stops over such logits. Prefixes may hold NaN as well, so none is kept."""
        if self._prefixes is not None:
            self._prefixes.clear()
        remedy = "The checkpoint may be damaged: download it again."
        if self._state.dtype != torch.float32:
            remedy = (
                "The checkpoint may be damaged, or its values overflow in bf16: download it again, or load it with "
                "dtype fp32."
            )
        return HiggsError(
            f"The model produced values that are not numbers (NaN or infinity), so speech was stopped. {remedy}"
        )

    def _stalled(self) -> HiggsError:
        """Why speech stops at a kernel whose blocks did not hear of each other; the next speech may be luckier."""
        self._runner.reset()
        return HiggsError(
            "The GPU got stuck: parts of it waited for each other for over a second, so speech was stopped. Try "
            "again. If it happens again, please report it with the output of `python -m engine doctor FOLDER`."
        )

    def _ready(self, num_generated: int, ended: bool, finished: bool) -> int:
        """Whole frames in so many outputs of a sequence."""
        state = self._state
        return frames_ready(num_generated, state.config.codebooks, state.family.closing_columns, ended, finished)

    def _take(self, sequence: Sequence, new: torch.Tensor) -> torch.Tensor:
        """The frames [t, K] that the outputs `new` complete; outputs that later frames need too stay pending."""
        pending = new if sequence.pending is None else torch.cat([sequence.pending, new])
        count = self._ready(sequence.num_generated, sequence.ended, sequence.finished) - sequence.num_frames
        frames = revert(pending[: count + self._state.config.codebooks - 1]) if count > 0 else pending[:0]
        sequence.num_frames += len(frames)
        sequence.codes.append(frames)
        sequence.pending = pending[len(frames) :].clone()
        return frames


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy, valid once the work queued so far is done."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)
