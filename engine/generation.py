"""Decodes what a request asks for: runners, scheduler and windows, stage by stage. Knows no text."""

from __future__ import annotations

from .codec.waveform import Waveform
from .decode.model_runner import ModelRunner
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Scheduler
from .loaded_model import LoadedModel
from .request import SpeechRequest
from .result import SpeechResult
from .sequence import Sequence


def generate(loaded: LoadedModel, request: SpeechRequest, waveform: Waveform) -> SpeechResult:
    """Speaks a request. waveform: its own. Raises what the request and its listener raise."""
    for sequences in request.stages():
        if sequences:
            alone = request.is_single(sequences)
            with loaded.runner_for(len(sequences), request.longest(sequences), alone) as runner:
                _decode(loaded, runner, request, sequences, waveform)
        waveform.finish()
        request.settle()
    return request.result()


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
