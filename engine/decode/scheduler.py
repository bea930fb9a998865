"""The host's loop around the step: prompts in, frames of codes out, progress and cancel. Knows no audio and no text."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from .. import codes as delay
from ..codes import frames_ready
from ..config import SamplingParams
from ..errors import HiggsError
from .step import prefill

CHECK_EVERY = 4  # steps between two looks at what the device has written


@dataclass
class Line:
    """What one line has said so far."""

    number: int  # its place in the queue
    rest: torch.Tensor  # [k, N] emitted rows that are not yet whole frames, or belong to the next one too
    written: int = 0  # rows emitted
    taken: int = 0  # frames handed out
    ended: bool = False  # speech ended by itself
    done: bool = False


class Decoding:
    """One run of the step over a queue of prompts, as many at a time as the state has rows.

    Iterate over it for (index of the line, codes [k, N]) as frames come; a line's last piece, which may be empty, comes
    when `lines[index].done` is true. A row whose line has ended takes the next line of the queue. What a line says
    depends on its prompt, its number and the settings, not on its row or its neighbours.

    The device is read late: what a step wrote is looked at while later steps run, so that the host never waits for the
    newest one. A row that has ended may therefore step on for a few frames; they are not counted.

    Raises HiggsError when a line's logits hold NaN or an infinity.

    first_line: the number of the queue's first line in its text; on_step(): called after every prompt and every step,
    may raise to cancel; hurry: frames of the first line that are wanted as soon as they are there: until they are, it
    decodes alone and the device is not read late; prefixes: beginnings of prompts computed before.
    """

    def __init__(
        self,
        talker,
        state,
        executor,
        prompts,
        params: SamplingParams,
        first_line: int = 0,
        on_step=None,
        hurry: int = 0,
        prefixes=None,
    ):
        self._talker, self._state, self._executor = talker, state, executor
        self._params, self._first_line, self._on_step = params, first_line, on_step
        self._hurry, self._prefixes = hurry, prefixes
        self._queue = deque(enumerate(prompts))
        self._rows: list[Line | None] = [None] * state.batch  # whose line each row decodes
        self._copies: deque = deque()  # under way to the host
        self._late = 1 if state.device.type == "cuda" else 0  # copies that may stay unread
        self._steps = self._looked = 0
        nothing = torch.empty((0, state.config.codebooks), dtype=torch.int64)
        self.lines = [Line(number, nothing) for number, _ in self._queue]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Lets go of all that is on the device: an exception that ends the call refers to this object for longer."""
        self._talker = self._state = self._executor = self._prefixes = self._on_step = None
        self._copies.clear()

    def __iter__(self):
        self._state.done.fill_(True)
        self._refill()
        while any(self._rows):
            self._executor.step()
            self._steps += 1
            self._tick()
            if self._is_time():
                self._post()
                while len(self._copies) > (0 if self._hurry else self._late):
                    yield from self._read()
                self._refill()

    def _is_time(self) -> bool:
        if self._hurry:
            return frames_ready(self._state.config, self._steps, False, False) >= self._hurry  # none can be sooner
        return self._steps - self._looked >= CHECK_EVERY

    def _tick(self):
        if self._on_step is not None:
            self._on_step()

    def _refill(self):
        """Gives rows without a line the next ones of the queue."""
        for b, line in enumerate(self._rows):
            if not self._queue or (self._hurry and any(self._rows)):
                return
            if line is None:
                number, prompt = self._queue.popleft()
                line_number = self._first_line + number
                prefill(self._talker, self._state, b, prompt, line_number, self._params, self._prefixes)
                self._rows[b] = self.lines[number]
                self._tick()

    def _post(self):
        """Starts the copy of the rows emitted since the last one, and of the counters, to the host."""
        state, steps = self._state, self._steps - self._looked
        self._looked = self._steps
        ages = torch.arange(steps, device=state.device)
        index = (state.written - steps).clamp_(min=0).add_(state.row_base).unsqueeze(1) + ages
        fresh = state.rows.flatten(0, 1).index_select(0, index.flatten()).view(state.batch, steps, -1)
        counters = torch.stack([state.written, state.done.long(), state.ended.long(), state.finite.long()])
        event = None
        if state.device.type == "cuda":
            fresh, counters = _to_host(fresh), _to_host(counters)
            event = torch.cuda.Event()
            event.record()
        self._copies.append((tuple(self._rows), fresh, counters, event))

    def _read(self):
        """Takes the oldest copy and yields the frames it completes.

        It knows whose line each row decoded when it was made; a row may have got another line since.
        """
        owners, fresh, counters, event = self._copies.popleft()
        if event is not None:
            event.synchronize()
        for b, (written, done, ended, finite) in enumerate(counters.t().tolist()):
            line = owners[b]
            if line is None or line.done:
                continue
            if not finite:
                raise self._not_finite()
            start = line.written - max(0, written - fresh.shape[1])
            rows = fresh[b, start : start + written - line.written]
            line.written, line.done, line.ended = written, bool(done), bool(ended)
            codes = self._take(line, rows)
            if line.taken >= self._hurry or line.done:
                self._hurry = 0
            if line.done:
                self._rows[b] = None
            if len(codes) or line.done:
                yield line.number, codes

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

    def _take(self, line: Line, rows: torch.Tensor) -> torch.Tensor:
        """The frames that `rows` complete; rows that later frames need too are kept."""
        config = self._state.config
        line.rest = torch.cat([line.rest, rows])
        count = frames_ready(config, line.written, line.ended, line.done) - line.taken
        codes = delay.revert(line.rest[: count + config.codebooks - 1]) if count > 0 else line.rest[:0]
        line.taken += len(codes)
        line.rest = line.rest[len(codes) :].clone()
        return codes


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy, valid once the work queued so far is done."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)
