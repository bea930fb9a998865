"""The host's loop around the step: prompts in, frames of codes out, progress and cancel. Knows no audio and no text."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from . import delay
from .config import SamplingParams
from .step import frames_ready, prefill

CHECK_EVERY = 8  # steps between two looks at what the device has written


@dataclass
class Line:
    """What one batch row has said so far."""

    rows: list = field(default_factory=list)  # [k, N] pieces on the host
    written: int = 0
    taken: int = 0  # frames handed out
    ended: bool = False  # speech ended by itself
    done: bool = False


class Decoding:
    """One run of the step over up to `state.batch` prompts. Iterate over it for (row, codes [k, N]) as frames come.

    The device is read late: what step s wrote is looked at while later steps run, so that the host never waits for
    the newest one. A row that has ended may therefore step on for a few frames; they are not counted.
    """

    def __init__(self, talker, state, runner, prompts, params: SamplingParams, first_line: int = 0, on_step=None):
        self._talker, self._state, self._runner = talker, state, runner
        self._prompts, self._params, self._first_line = prompts, params, first_line
        self._on_step = on_step
        self._pending = deque()
        self._late = 1 if state.device.type == "cuda" else 0
        self.lines = [Line() for _ in prompts]

    def __iter__(self):
        state = self._state
        state.done.fill_(True)
        for b, prompt in enumerate(self._prompts):
            prefill(self._talker, state, b, prompt, self._first_line + b, self._params)
        steps = looked = 0
        while not all(line.done for line in self.lines):
            self._runner.step()
            steps += 1
            if self._on_step is not None:
                self._on_step(max(line.taken for line in self.lines))
            if steps % CHECK_EVERY == 0 or steps >= state.context:
                self._post(looked, steps)
                looked = steps
                while len(self._pending) > self._late or (self._pending and steps >= state.context):
                    yield from self._read()

    def _post(self, first: int, last: int):
        """Starts the copy of rows first..last and of the counters to the host."""
        state = self._state
        sources = (state.rows[:, first:last], state.written, state.done, state.ended)
        if not self._late:
            self._pending.append((first, tuple(source.clone() for source in sources), None))
            return
        copies = tuple(torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources)
        for copy, source in zip(copies, sources, strict=True):
            copy.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((first, copies, event))

    def _read(self):
        """Takes the oldest copy and yields the frames it completes."""
        first, (rows, written, done, ended), event = self._pending.popleft()
        if event is not None:
            event.synchronize()
        for b, line in enumerate(self.lines):
            fresh = int(written[b]) - line.written
            start = line.written - first
            line.rows.append(rows[b, start : start + fresh].clone())
            line.written += fresh
            line.done, line.ended = bool(done[b]), bool(ended[b])
            codes = self._take(line)
            if len(codes):
                yield b, codes

    def _take(self, line: Line) -> torch.Tensor:
        config = self._state.config
        ready = frames_ready(config, line.written, line.ended, line.done)
        rows = torch.cat(line.rows)
        codes = delay.revert(rows[: ready + config.codebooks - 1])[line.taken :] if ready else rows[:0]
        line.taken += len(codes)
        line.rows = [rows]
        return codes
