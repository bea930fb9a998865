"""Decodes what requests ask for: runners, scheduler and windows, stage by stage. Knows no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace

from .codec.waveform import Waveform
from .config import SamplingParams
from .decode.model_runner import ModelRunner
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Outputs, Scheduler
from .loaded_model import LoadedModel
from .memory import Peak
from .prompt.script import Turn
from .request import Listener, SpeechRequest
from .result import SpeechResult
from .sequence import Sequence
from .voice.voice import Voice


def generate(loaded: LoadedModel, request: SpeechRequest, waveform: Waveform) -> SpeechResult:
    """Speaks a request. waveform: its own. Raises what the request and its listener raise."""
    peak = Peak(loaded.pool.device, loaded.held_bytes)
    waveform.together = loaded.windows_together()  # of what has been said before
    for sequences in request.stages():
        if sequences:
            alone = request.is_single(sequences)
            with loaded.runner_for(len(sequences), request.longest(sequences), alone) as runner:
                waveform.together = 1 if alone else loaded.windows_together()
                _decode(loaded, runner, request, sequences, waveform)
        waveform.finish()
        request.settle()
    return replace(request.result(), peak_bytes=peak.nbytes())


def _decode(
    loaded: LoadedModel, runner: ModelRunner, request: SpeechRequest, sequences: list[Sequence], waveform: Waveform
):
    """One stage, until no take of it is to be spoken again."""
    rows = min(runner.state.batch, len(sequences))
    request.decoded_by(loaded.describe(runner) + (f", {rows} chunks at a time" if rows > 1 else ""), runner.notes)
    waveform.windows.serialize = rows == 1
    prefixes = PrefixCache(runner.pool, request.own_voices) if request.own_voices else loaded.prefixes
    with Scheduler(runner, sequences, prefixes, request.low_latency_frames(sequences[0])) as scheduler:
        while scheduler.waiting:
            for outputs in scheduler:
                for sequence, frames in outputs:
                    request.push(sequence, frames)
                waveform.poll()
                scheduler.add(*request.settle())
                request.tick()
            waveform.finish()
            scheduler.add(*request.settle())


class Batch:
    """Requests of many callers that decode together: each joins when it comes, and its rows are free when it goes.

    runner, waveform: for these requests alone, as long as the batch is in use. make(waveform, ...): a request. What one
    says does not depend on its neighbours. Used by one thread.
    """

    def __init__(
        self, loaded: LoadedModel, runner: ModelRunner, waveform: Waveform, make: Callable[..., SpeechRequest]
    ):
        self._how, self._notes, self._waveform = loaded.describe(runner), runner.notes, waveform
        self._make = make
        self._scheduler = Scheduler(runner, (), loaded.prefixes)
        self._steps: Iterator[Outputs] | None = None
        self._stages: dict[SpeechRequest, Iterator[list[Sequence]]] = {}
        self._owners: dict[Sequence, SpeechRequest] = {}

    def __enter__(self) -> Batch:
        self._waveform.windows.serialize = False
        return self

    def __exit__(self, *exc: object) -> None:
        self._stages.clear()
        self._owners.clear()
        self._steps = None
        self._scheduler.__exit__(*exc)

    def __len__(self) -> int:
        """Requests that are not finished."""
        return len(self._stages)

    def add(
        self,
        turns: Ordered[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        listener: Listener,
    ) -> SpeechRequest:
        """Takes a request in. Raises HiggsError where it has no word, or a prompt of it does not fit."""
        request = self._make(self._waveform, turns, voices, params, scene, listener)
        stages = request.stages()
        first = next(stages)
        self._stages[request] = stages
        self._queue(request, first)
        return request

    def drop(self, request: SpeechRequest) -> None:
        """Takes a request out: nothing of it comes any more."""
        self._stages.pop(request, None)
        for sequence in [sequence for sequence, owner in self._owners.items() if owner is request]:
            del self._owners[sequence]
            self._scheduler.drop(sequence)

    def step(self) -> list[SpeechRequest]:
        """One step of all that decode -> the requests that this finished, whose `result` is there.

        Raises HiggsError as the scheduler does, and for sound that is not finite; then no request can go on.
        """
        if self._steps is None:
            self._steps = iter(self._scheduler)
        outputs = next(self._steps, None)
        for sequence, frames in outputs or ():
            self._owners[sequence].push(sequence, frames)
            if sequence.finished:
                del self._owners[sequence]
        if outputs is None:  # nothing decodes: only the last windows are still to come
            self._steps = None
            self._waveform.finish()
        else:
            self._waveform.poll()
        return [request for request in list(self._stages) if self._is_finished(request)]

    def _is_finished(self, request: SpeechRequest) -> bool:
        self._queue(request, request.settle())
        while request.is_settled:
            sequences = next(self._stages[request], None)
            if sequences is None:
                del self._stages[request]
                return True
            self._queue(request, sequences)
        return False

    def _queue(self, request: SpeechRequest, sequences: list[Sequence]):
        if sequences:
            request.decoded_by(self._how, self._notes)
        self._owners.update(dict.fromkeys(sequences, request))
        self._scheduler.add(*sequences)
