"""Reading back: frames and counters on their way to the host, and into their sequences."""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

import torch

from ..core.codes import frames_ready
from ..core.sequence import Sequence
from ..device.memory import end_of_work, to_host
from .state import DecodeState


class Copy(NamedTuple):
    """A state's latest frames and counters. Valid on the host after `event`."""

    owners: tuple[Sequence | None, ...]  # by row; a row may have another sequence by the time of reading
    frames: torch.Tensor  # [B, t, K], whole or not
    counters: torch.Tensor  # [5, B]: outputs so far, done, ended, finite, stalled
    event: torch.cuda.Event | None


class RowRead(NamedTuple):
    """Progress of a row's sequence, whose codes and counters are up to date."""

    sequence: Sequence
    frames: torch.Tensor  # new final ones [t, K]
    is_finite: bool  # False: the sequence cannot go on, and was not changed


class Readback:
    """Copies outputs asynchronously, so the host need not wait for the latest step."""

    def __init__(self, state: DecodeState):
        self._state, codebooks = state, state.config.codebooks
        self._diagonal = torch.arange(codebooks, device=state.device) * (codebooks + 1)  # a frame's outputs
        self._copies: deque[Copy] = deque()  # in flight
        self.copied = 0  # steps whose copy has started

    def __len__(self) -> int:
        return len(self._copies)

    def start(self, owners: list[Sequence | None], num_steps: int) -> None:
        """Start copying the latest frames and the counters.

        Those are the frames that the steps since the last copy have completed, and those held back before.
        """
        state, delay, codebooks = self._state, self._state.delay, self._state.config.codebooks
        frames = num_steps - self.copied + state.family.closing_columns
        self.copied = num_steps
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
        self._copies.append(Copy(tuple(owners), fresh, counters, event))

    def read(self) -> list[RowRead] | None:
        """Read the oldest copy into the sequences that are not finished. None if a kernel has stalled."""
        owners, fresh, counters, event = self._copies.popleft()
        if event is not None:
            event.synchronize()
            fresh = fresh.clone()  # sequences keep parts of it, and pinned memory is scarce
        rows = []
        for row, (num_generated, done, ended, finite, stalled) in enumerate(counters.t().tolist()):
            sequence = owners[row]
            if stalled:
                return None
            if sequence is None or sequence.finished:
                continue
            frames = fresh[row, :0]
            if finite:
                sequence.finished, sequence.ended = bool(done), bool(ended)
                frames = self._take(sequence, num_generated, fresh[row])
            rows.append(RowRead(sequence, frames, bool(finite)))
        return rows

    def _take(self, sequence: Sequence, num_generated: int, latest: torch.Tensor) -> torch.Tensor:
        """Return the new frames [t, K] of a sequence. latest: the last frames of its outputs, whole or not."""
        ready = self._ready(num_generated, sequence.ended, sequence.finished)
        before = num_generated - self._state.config.codebooks + 1 - len(latest)  # frames before the latest
        frames = latest[sequence.num_frames - before : ready - before]
        sequence.num_frames = ready
        sequence.codes.append(frames)
        return frames

    def _ready(self, num_generated: int, ended: bool, finished: bool) -> int:
        """Return the number of whole frames in `num_generated` outputs."""
        state = self._state
        return frames_ready(num_generated, state.config.codebooks, state.family.closing_columns, ended, finished)

    def steps_for(self, frames: int) -> int:
        """Return the number of outputs that hold so many whole frames of a sequence that has not ended."""
        return next(steps for steps in itertools.count() if self._ready(steps, False, False) >= frames)
