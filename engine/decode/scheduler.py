"""Continuous batching: admits sequences into rows, steps them, and collects outputs."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections import deque
from collections.abc import Collection, Iterable, Iterator

import torch

from ..core.codes import frames_ready
from ..core.errors import HiggsError
from ..core.sequence import Sequence, next_fair
from ..device.memory import end_of_work, to_host
from .kernels.prompt import MAX_POSITIONS
from .kv_cache import KVCache
from .model_runner import ModelRunner
from .prefix_cache import PrefixCache

CHECK_EVERY = 4  # steps between copies of outputs to the host
MAX_QUEUED = 2  # steps of a batch that a GPU may still have to do: a new prompt or a stop waits for them

Outputs = list[tuple[Sequence, torch.Tensor]]  # new final frames [t, K] of a sequence; t may be 0 at its end


class Scheduler:
    """Decodes sequences with continuous batching: when a sequence finishes, its row takes the next waiting one.

    Iterate over it: it yields new final frames after every prefill and every step. `add` queues more sequences during
    iteration. `drop` removes a sequence: it yields no more frames, and its row is free at the next step. A sequence's
    codes depend on its prompt, index and parameters, not on its row or neighbours.

    Outputs are copied asynchronously and read one check later, so the host never waits for the latest step. A row that
    has ended may therefore step on for a few frames, which are ignored.

    prefixes: prefix cache for prompts.
    first_frames: frames that a listener waits for. They are copied in the step that completes them, and read once the
        next step is queued.
    alone: decode the next sequence alone, and read its first frames at once. Ends with them, or with a second listener.
    in_order: a caller's sequences wait while an earlier one leads, for rows that share a processor.

    A sequence finishes with an `error` if its logits contain NaN or infinity, or if its prompt runs out of memory. The
    others continue. Raises HiggsError if a kernel's blocks time out waiting for each other.
    """

    def __init__(
        self,
        runner: ModelRunner,
        sequences: Iterable[Sequence] = (),
        prefixes: PrefixCache | None = None,
        first_frames: int = 0,
        alone: bool = False,
        in_order: bool = False,
    ):
        self._runner, self._state, self._prefixes = runner, runner.state, prefixes
        codebooks = self._state.config.codebooks
        self._diagonal = torch.arange(codebooks, device=self._state.device) * (codebooks + 1)  # a frame's outputs
        self.alone, self._in_order = alone, in_order
        self.waiting: deque[Sequence] = deque(sequences)
        self.running: list[Sequence | None] = [None] * self._state.batch  # by row
        self._latest: list[Sequence | None] = [None] * self._state.batch  # by row: the running or the last one
        self.num_steps = self._copied = 0  # steps so far, and steps whose copy has started
        self._first_steps = self._steps_for(first_frames) if first_frames else 0
        self._firsts: set[int] = set()  # steps that complete the first frames of a sequence
        self._is_awaited = False  # the step before was one of them
        self._filling: tuple[list[tuple[int, Sequence]], Iterator[None]] | None = None  # prompts under way
        self._copies: deque = deque()  # copies in flight to the host
        self._queued: deque[torch.cuda.Event] = deque()  # the ends of steps on the device's queue
        self.unread = 1 if self._state.device.type == "cuda" else 0  # copies that may stay unread

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        """Release everything on the device. An exception may keep this object alive after the call."""
        with contextlib.suppress(AttributeError):  # already left
            del self._runner, self._state, self._prefixes, self._diagonal
        self._filling = None
        self._copies.clear()
        self._queued.clear()

    def add(self, *sequences: Sequence) -> None:
        """Append sequences to the waiting queue."""
        if self.waiting or self.is_busy:
            self.alone &= not any(sequence.listened for sequence in sequences)
        self.waiting.extend(sequences)

    def drop(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence. It keeps the codes read so far, and is `finished` but not `ended`."""
        sequence.finished = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            row = self.running.index(sequence)
            self.running[row] = None
            self.alone = False
            self._state.delay.set_row(row, done=True)

    def place_of(self, sequence: Sequence) -> tuple[KVCache, int] | None:
        """Return the cache of a running or finished sequence and its row. None once another prompt is in it."""
        return (self._state.cache, self._latest.index(sequence)) if sequence in self._latest else None

    @property
    def is_busy(self) -> bool:
        """True if any row decodes a sequence, or a prompt is under way."""
        return self._filling is not None or any(sequence is not None for sequence in self.running)

    def __iter__(self) -> Iterator[Outputs]:
        self._state.delay.done.fill_(True)
        while self.waiting or self.is_busy:
            yield from self._admit()
            if not self.is_busy:  # all admitted sequences have been dropped
                continue
            self.num_steps += 1
            if self.alone and self.num_steps in self._firsts:  # heard before the talker goes on
                self._runner.sample()
                yield self._collect()
                self._runner.decode()
            else:
                self._runner.step()
                self._keep_queue_short()
                yield self._collect()

    def _keep_queue_short(self):
        """Wait until a GPU has at most MAX_QUEUED steps of a batch to do. One row's steps are too short to matter."""
        if self._state.device.type == "cuda" and self._state.batch > 1:
            self._queued.append(end_of_work())
            if len(self._queued) > MAX_QUEUED:
                self._queued.popleft().synchronize()

    def _admit(self) -> Iterator[Outputs]:
        """Prefill waiting sequences: until the rows are full if none decodes, else as far as the runner's first yield.

        Rows that decode then wait for MAX_POSITIONS positions at most, about two steps on a GPU. The rest of a longer
        prompt follows after the next step.
        """
        decodes = any(sequence is not None for sequence in self.running)
        while self._filling or (admitted := self._next()):
            filling = self._filling or (admitted, self._runner.fills(admitted, self._prefixes))
            yield from self._fill(*filling)
            if decodes:
                return

    def _next(self) -> list[tuple[int, Sequence]]:
        """Pair waiting sequences with free rows: one, or as many as MAX_POSITIONS allows."""
        free = [row for row, sequence in enumerate(self.running) if sequence is None]
        if self.alone:
            free = [] if self.is_busy else free[:1]
        admitted: list[tuple[int, Sequence]] = []
        room = MAX_POSITIONS
        for row in free[: len(self.waiting)]:
            running = [*filter(None, self.running), *(other for _, other in admitted)]
            if not (ready := self._ready_beside(running)):
                break
            self.waiting.remove(sequence := next_fair(ready, running))
            is_kept = self._prefixes is not None and sequence in self._prefixes
            room -= len(sequence) - sequence.prefix * is_kept
            if admitted and room < 0:
                self.waiting.appendleft(sequence)
                break
            admitted.append((row, sequence))
            self._latest[row] = None
        return admitted

    def _ready_beside(self, running: list[Sequence]) -> Collection[Sequence]:
        """Return the waiting sequences but those that wait for a leading one of their caller."""
        if not self._in_order:
            return self.waiting
        leading = [(one.caller, one.place) for one in running if one.leads]
        return [
            one for one in self.waiting if all(caller != one.caller or one.place <= place for caller, place in leading)
        ]

    def _fill(self, admitted: list[tuple[int, Sequence]], fills: Iterator[None]) -> Iterator[Outputs]:
        """Prefill on to the runner's next yield. Prompts that run out of memory together are tried one by one."""
        failed = None
        try:
            self._filling = None if next(fills, "whole") == "whole" else (admitted, fills)
        except torch.cuda.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # their tensors would outlive the sequence
            failed, self._filling = error.with_traceback(None), None
        if self._filling is not None:
            yield []
        elif failed is None:
            for row, sequence in admitted:
                self.running[row] = self._latest[row] = sequence
                if self._first_steps and (sequence.listened or self.alone):
                    self._firsts.add(self.num_steps + self._first_steps)
                if sequence.finished:  # dropped meanwhile
                    self.drop(sequence)
            yield []
        elif len(admitted) == 1:
            yield [self._fail(sequence, failed) for _, sequence in admitted if not sequence.finished]
        else:
            for one in admitted:
                self._filling = [one], self._runner.fills([one], self._prefixes)
                while self._filling is not None:
                    yield from self._fill(*self._filling)

    def _collect(self) -> Outputs:
        """Copy the outputs since the last copy if it is time, and read the copies that are due."""
        outputs = self._read(0) if self._is_awaited else []
        self._is_awaited = self.num_steps in self._firsts
        self._firsts.discard(self.num_steps)
        if self._is_awaited or (not self.alone and self.num_steps - self._copied >= CHECK_EVERY):
            self._start_copy()
        return outputs + self._read(0 if self.alone else self.unread)

    def _read(self, unread: int) -> Outputs:
        """Read all copies but the last `unread`, and return their final frames."""
        outputs: Outputs = []
        while len(self._copies) > unread:
            outputs += self._read_oldest()
        return outputs

    def _start_copy(self):
        """Start copying the latest frames and the counters to the host.

        Those are the frames that the steps since the last copy have completed, and those held back before.
        """
        state, delay, codebooks = self._state, self._state.delay, self._state.config.codebooks
        frames = self.num_steps - self._copied + state.family.closing_columns
        self._copied = self.num_steps
        ages = torch.arange(frames, device=state.device)
        first = (delay.num_generated - (codebooks - 1 + frames)).unsqueeze(1) + ages
        index = first.clamp_(min=0).add_(delay.output_base.unsqueeze(1)).mul_(codebooks)
        fresh = delay.outputs.take(index.unsqueeze(2) + self._diagonal)
        flags = (delay.done, delay.ended, state.sampler.finite, state.work.stalled.expand(state.batch))
        counters = torch.stack([delay.num_generated, *(flag.long() for flag in flags)])
        event = None
        if state.device.type == "cuda":
            fresh, counters = to_host(fresh), to_host(counters)
            event = end_of_work()
        self._copies.append((tuple(self.running), fresh, counters, event))

    def _read_oldest(self) -> Outputs:
        """Read the oldest copy and return its final frames.

        The copy records which sequence each row had at that time. A row may have another sequence by now.
        """
        owners, fresh, counters, event = self._copies.popleft()
        if event is not None:
            event.synchronize()
            fresh = fresh.clone()  # sequences keep parts of it, and pinned memory is scarce
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
            sequence.finished, sequence.ended = bool(done), bool(ended)
            frames = self._take(sequence, num_generated, fresh[row])
            self.alone = False
            if sequence.finished:
                self.running[row] = None
            if len(frames) or sequence.finished:
                outputs.append((sequence, frames))
        return outputs

    def _fail(self, sequence: Sequence, error: BaseException) -> tuple[Sequence, torch.Tensor]:
        """Drop a sequence with an error and return its last output."""
        self.drop(sequence)
        sequence.error, self.alone = error, False
        return sequence, torch.empty(0, self._state.config.codebooks, dtype=torch.int64)

    def _not_finite(self) -> HiggsError:
        """Return the error for logits with NaN or infinity. Clears the prefix cache, which may contain NaN as well."""
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
        """Reset the runner after a kernel timeout and return the error. The next call may succeed."""
        self._runner.reset()
        return HiggsError(
            "The GPU got stuck: parts of it waited for each other for over a second, so speech was stopped. Try "
            "again. If it happens again, please report it with the output of `python -m engine doctor FOLDER`."
        )

    def _ready(self, num_generated: int, ended: bool, finished: bool) -> int:
        """Return the number of whole frames in `num_generated` outputs."""
        state = self._state
        return frames_ready(num_generated, state.config.codebooks, state.family.closing_columns, ended, finished)

    def _steps_for(self, frames: int) -> int:
        """Return the number of outputs that hold so many whole frames of a sequence that has not ended."""
        return next(steps for steps in itertools.count() if self._ready(steps, False, False) >= frames)

    def _take(self, sequence: Sequence, num_generated: int, latest: torch.Tensor) -> torch.Tensor:
        """Return the new frames [t, K] of a sequence. latest: the last frames of its outputs, whole or not."""
        ready = self._ready(num_generated, sequence.ended, sequence.finished)
        before = num_generated - self._state.config.codebooks + 1 - len(latest)  # frames before the latest
        frames = latest[sequence.num_frames - before : ready - before]
        sequence.num_frames = ready
        sequence.codes.append(frames)
        return frames
