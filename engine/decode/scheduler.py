"""Continuous batching: admits sequences into rows, steps them, and collects outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import torch

from ..core.closing import Closable
from ..core.errors import HiggsError
from ..core.sequence import Sequence, next_fair
from ..device.memory import end_of_work
from .kv_cache import KVCache
from .model_runner import ModelRunner
from .prefix_cache import PrefixCache
from .prompts import MAX_AT_ONCE, PendingFill
from .readback import Readback

CHECK_EVERY = 4  # steps between copies of outputs to the host
MAX_QUEUED = 2  # steps of a batch that a GPU may still have to do: a new prompt or a stop waits for them
MAX_HELD = 4  # steps that prompts wait for streams that would run dry; more would delay first sounds

Outputs = list[tuple[Sequence, torch.Tensor]]  # new final frames [t, K] of a sequence; t may be 0 at its end


class Scheduler(Closable):
    """Decodes sequences with continuous batching: when a sequence finishes, its row takes the next waiting one.

    `add` queues sequences at any time. `step` prefills or decodes one step while it `is_busy`. `drop` removes a
    sequence: it yields no more frames, and its row is free at the next step. A sequence's codes depend on its prompt,
    index and parameters, not on its row or neighbours.

    Outputs are read one check after they are copied, so the host never waits for the latest step. A row that has ended
    may therefore step on for a few frames, which are ignored.

    prefixes: prefix cache for prompts.
    first_frames: numbers of frames that a listener waits for. They are copied in the step that completes them, and read
        once the next step is queued.
    in_order: a caller's sequences wait while an earlier one leads, for rows that share a processor.
    runs_short: true while what a listener has would not outlast a prompt. Prompts wait then.

    A sequence finishes with an `error` if its logits contain NaN or infinity, or if its prompt runs out of memory. The
    others continue. Raises HiggsError if a kernel's blocks time out waiting for each other.
    """

    def __init__(
        self,
        runner: ModelRunner,
        prefixes: PrefixCache | None = None,
        first_frames: Collection[int] = (),
        in_order: bool = False,
        runs_short: Callable[[], bool] = lambda: False,
    ):
        self._runner, self._state, self._prefixes, self._in_order = runner, runner.state, prefixes, in_order
        self._readback = Readback(self._state)
        self._lone: Sequence | None = None
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence | None] = [None] * self._state.batch  # by row
        self._latest: list[Sequence | None] = [None] * self._state.batch  # by row: the running or the last one
        self._since = [0] * self._state.batch  # by row: steps before its sequence began
        self.num_steps = 0
        self._first_steps = [*map(self._readback.steps_for, first_frames)]
        self._firsts: set[int] = set()  # steps that complete the first frames of a sequence
        self._runs_short, self._held = runs_short, 0  # steps for which prompts have been waiting for a short stream
        self._is_awaited = False  # the step before was one of them
        self._is_halfway = False  # the step before has sampled only
        self._fills: deque[PendingFill] = deque()  # prompts under way
        self._filled = -1  # steps before the last fill
        self._queued: deque[torch.cuda.Event] = deque()  # the ends of steps on the device's queue
        self.unread = 1 if self._state.device.type == "cuda" else 0  # copies that may stay unread
        self._state.delay.done.fill_(True)

    def add(self, *sequences: Sequence, alone: bool = False) -> None:
        """Append sequences to the waiting queue.

        alone: decode the first of them alone, and read its first frames at once. Ends early with a second listener.
        """
        if self.is_busy and any(sequence.listened for sequence in sequences):
            self._lone = None
        if alone:
            self._lone = sequences[0]
        self.waiting.extend(sequences)

    def drop(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence. It keeps the codes read so far, and is `finished` but not `ended`."""
        sequence.finished = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            row = self.running.index(sequence)
            self.running[row] = None
            self._state.delay.set_row(row, done=True)

    def place_of(self, sequence: Sequence) -> tuple[KVCache, int] | None:
        """Return the cache of a running or finished sequence and its row. None once another prompt is in it."""
        return (self._state.cache, self._latest.index(sequence)) if sequence in self._latest else None

    @property
    def is_busy(self) -> bool:
        """True if `step` has anything to do."""
        return bool(self.waiting or self._fills) or self._decodes

    @property
    def _decodes(self) -> bool:
        return any(sequence is not None for sequence in self.running)

    @property
    def alone(self) -> bool:
        """True while a sequence is to be decoded alone."""
        return self._lone is not None and not (self._lone.num_frames or self._lone.finished)

    def step(self) -> Outputs:
        """Prefill waiting sequences or decode a step, and return new final frames."""
        if self._is_halfway:
            self._is_halfway = False
            self._runner.decode()
        if (self._fills or self.waiting) and self._may_fill() and self._admit():
            self._filled, self._held = self.num_steps, 0
            return self._fill()
        if not self._decodes:  # all sequences have been dropped
            return []
        self._runner.rows = self._gather()
        self.num_steps += 1
        if self.alone and self.num_steps in self._firsts:  # heard before the talker goes on
            self._runner.sample()
            self._is_halfway = True
        else:
            self._runner.step()
            self._keep_queue_short()
        return self._collect()

    def _gather(self) -> int:
        """Return the fewest rows that a step needs now. Moves sequences out of the rows above.

        A move takes the device some 50 us for 500 slots, and a step of fewer rows saves ten times that.
        """
        taken = [sequence is not None for sequence in self.running]
        for row in (row for fill in self._fills for row, _ in fill.admitted):
            taken[row] = True
        for rows in self._runner.row_counts:
            above = [row for row in range(rows, len(taken)) if self.running[row] is not None]
            free = [row for row in range(rows) if not taken[row]]
            if len(above) <= len(free):
                for row, to in zip(above, free, strict=False):
                    self._move(row, to)
                return rows
        raise AssertionError("the last of the runner's row counts has all rows")

    def _move(self, row: int, to: int):
        sequence, since = self.running[row], self._since[row]
        assert sequence is not None
        self._state.move_row(row, to, len(sequence) + self.num_steps - since)
        for held in (self.running, self._latest):
            held[to], held[row] = sequence, None
        self._since[to] = since

    def _keep_queue_short(self):
        """Wait until a GPU has at most MAX_QUEUED steps of a batch to do. One row's steps are too short to matter."""
        if self._state.device.type == "cuda" and self._state.batch > 1:
            self._queued.append(end_of_work())
            if len(self._queued) > MAX_QUEUED:
                self._queued.popleft().synchronize()

    def _may_fill(self) -> bool:
        """True if rows may wait for prompts now: until all are full if none decoded before, else once a step.

        Rows that decode then wait for MAX_AT_ONCE positions at most, about two steps on a GPU. The rest of a longer
        prompt follows after the next step. None begins or goes on while a stream runs short, for MAX_HELD steps.
        """
        began = (since for sequence, since in zip(self.running, self._since, strict=True) if sequence is not None)
        if all(since == self.num_steps for since in began):
            return True
        if self._held < MAX_HELD and self._runs_short():
            self._held += 1
            return False
        return self._filled < self.num_steps

    def _admit(self) -> bool:
        """Begin prompts of waiting sequences unless some are under way. False if none are then."""
        if not self._fills and (admitted := self._next()):
            self._fills.append(self._runner.begin(admitted, self._prefixes))
        return bool(self._fills)

    def _next(self) -> list[tuple[int, Sequence]]:
        """Pair waiting sequences with free rows: one, or as many as MAX_AT_ONCE allows."""
        free = [row for row, sequence in enumerate(self.running) if sequence is None]
        admitted: list[tuple[int, Sequence]] = []
        room = MAX_AT_ONCE
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
        """Return the waiting sequences but those that wait for a lone one, or a leading one of their caller."""
        if self.alone:
            return [one for one in self.waiting if one is self._lone]
        if not self._in_order:
            return self.waiting
        leading = [(one.caller, one.place) for one in running if one.leads]
        return [
            one for one in self.waiting if all(caller != one.caller or one.place <= place for caller, place in leading)
        ]

    def _fill(self) -> Outputs:
        """Prefill a part of the prompts under way. Those that run out of memory together are tried one by one."""
        fill = self._fills.popleft()
        try:
            is_complete = fill.advance()
        except torch.cuda.OutOfMemoryError as error:
            if len(fill.admitted) == 1:  # its frames' tensors must not outlive the sequence
                failed = error.with_traceback(None)
                return [self._fail(sequence, failed) for _, sequence in fill.admitted if not sequence.finished]
            self._fills.extend(self._runner.begin([one], self._prefixes) for one in fill.admitted)
            return []
        if not is_complete:
            self._fills.appendleft(fill)
            return []
        for row, sequence in fill.admitted:
            self.running[row] = self._latest[row] = sequence
            self._since[row] = self.num_steps
            if sequence.listened or self.alone:
                self._firsts.update(self.num_steps + steps for steps in self._first_steps)
            if sequence.finished:  # dropped meanwhile
                self.drop(sequence)
        return []

    def _collect(self) -> Outputs:
        """Copy the outputs since the last copy if it is time, and read the copies that are due."""
        outputs = self._read(0) if self._is_awaited else []
        self._is_awaited = self.num_steps in self._firsts
        self._firsts.discard(self.num_steps)
        if self._is_awaited or (not self.alone and self.num_steps - self._readback.copied >= CHECK_EVERY):
            self._readback.start(self.running, self.num_steps)
        return outputs + self._read(0 if self.alone else self.unread)

    def _read(self, unread: int) -> Outputs:
        """Read all copies but the last `unread`, and return their final frames."""
        outputs: Outputs = []
        while len(self._readback) > unread:
            rows = self._readback.read()
            if rows is None:
                raise self._stalled()
            for sequence, frames, is_finite in rows:
                if not is_finite:
                    outputs.append(self._fail(sequence, self._not_finite()))
                    continue
                if sequence.finished:
                    self.running[self.running.index(sequence)] = None  # it may have moved since the copy
                if len(frames) or sequence.finished:
                    outputs.append((sequence, frames))
        return outputs

    def _fail(self, sequence: Sequence, error: BaseException) -> tuple[Sequence, torch.Tensor]:
        """Drop a sequence with an error and return its last output."""
        self.drop(sequence)
        sequence.error = error
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
