"""One call of speak: a text as sequences that decode together, and one waveform in the text's order.

Knows neither layers nor kernels, and what decodes the sequences only as a model runner.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

from . import ending
from .codec.waveform import Waveform
from .codes import CODEBOOK_SIZE
from .config import FRAME_RATE, SamplingParams
from .decode.model_runner import ModelRunner
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Scheduler
from .errors import HiggsError
from .loaded_model import LoadedModel
from .prompt.builder import PromptBuilder
from .prompt.chunking import estimate_frames, estimate_seconds, split_script
from .prompt.script import Script, read_pauses
from .result import SpeechResult
from .sequence import Sequence
from .voice.clip import MAX_CLIP_SECONDS
from .voice.voice import Voice

_SELF_REFERENCE_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)
_LEAST_REFERENCE_FRAMES = 3 * FRAME_RATE  # of a text's first chunks, where pauses make them short
_LENGTH_MARGIN = 1.5  # context kept free for a chunk, as a multiple of its estimated length
_LEAST_SECONDS = 2.0  # however small the context: shorter chunks are not sentences


class SpeechRequest:
    """Speaks one text. `on_frame(done, expected)` and `on_audio(wav)` are as for `Engine.speak`; both may raise."""

    def __init__(
        self,
        loaded: LoadedModel,
        builder: PromptBuilder,
        text: str,
        voice: Voice | None,
        params: SamplingParams,
        scene: str | None,
        on_frame: Callable[[int, int], None],
        on_audio: Callable[[torch.Tensor], None] | None = None,
    ):
        self._loaded, self._builder = loaded, builder
        self._text, self._params, self._scene = text, params, scene
        self._voice = self._given = voice
        self._on_frame, self._on_audio = on_frame, on_audio
        self._waveform = Waveform(loaded.decoder, loaded.pool, streamed=on_audio is not None)
        self._warnings: list[str] = []
        self._silences: list[float] = []  # seconds before each chunk, and after the last
        self._sequences: list[Sequence] = []  # in the text's order
        self._current = self._pieces = 0  # the sequence that is heard now, and how many pieces of its codes were
        self._done = self._remaining = 0  # frames, over the whole text
        self._how = ""

    def __enter__(self) -> SpeechRequest:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lets go of the engine's parts: an exception that ends the call refers to this object for longer."""
        self._waveform.close()
        with contextlib.suppress(AttributeError):  # closed before
            del self._loaded, self._on_frame, self._on_audio

    def run(self) -> SpeechResult:
        """The whole text. Raises HiggsError for a prompt that does not fit and for sound that is not finite."""
        began = time.perf_counter()
        script = read_pauses(self._text, self._params.paragraph_gap)
        self._warnings += script.warnings
        chunks, self._silences = split_script(script, self._chunk_seconds(script))
        self._remaining = sum(map(estimate_frames, chunks))
        if self._voice is None and len(chunks) > 1:
            self._speak_reference(chunks)
        self._decode(chunks[len(self._sequences) :])
        self._pause(len(chunks))
        self._hear(self._waveform.finish())
        none = torch.empty((0, self._loaded.talker.config.codebooks), dtype=torch.int64)
        codes = torch.cat([none, *(piece for sequence in self._sequences for piece in sequence.codes)])
        elapsed = time.perf_counter() - began
        limits = self._sequences, self._params.max_frames, self._loaded.context
        warnings = tuple(dict.fromkeys([*ending.warnings(*limits), *self._warnings]))
        stopped = ending.stopped(*limits)
        return SpeechResult(self._waveform.whole(), codes, elapsed, len(chunks), stopped, warnings, self._how)

    def _chunk_seconds(self, script: Script) -> float:
        """As asked for, or as much shorter as it takes for a chunk to fit behind its voice; 0 still never splits.

        Without a voice the first chunk is the voice of the others, and both must fit.
        """
        wanted = self._params.chunk_seconds
        if not wanted:
            return wanted
        overhead, tokens = self._builder.measure(script.text, self._voice, self._scene)
        seconds = max(1.0, estimate_seconds(script.text))
        per_second = FRAME_RATE * _LENGTH_MARGIN + tokens / seconds  # positions a second of speech
        fits = self._budget(overhead) / per_second
        if self._voice is None and seconds > min(wanted, fits):
            fits /= 2
        return min(wanted, max(fits, _LEAST_SECONDS))

    def _budget(self, positions: int) -> int:
        """Frames that a prompt of so many positions leaves room for."""
        return self._loaded.context - positions - self._loaded.talker.config.codebooks + 1

    def _speak_reference(self, chunks: list[str]):
        """The first chunk, alone: it is the voice of the others. Where a pause cuts it short, also the next ones."""
        while not self._sequences or (
            len(self._sequences) < len(chunks)
            and self._silences[len(self._sequences)]
            and sum(sequence.num_frames for sequence in self._sequences) < _LEAST_REFERENCE_FRAMES
        ):
            count = len(self._sequences) + 1
            self._decode(chunks[count - 1 : count])
            self._voice = self._self_reference(chunks[:count])

    def _decode(self, chunks: list[str]):
        """Speaks the next chunks of the text, all of them before the first one starts known to fit."""
        if not chunks:
            return
        first = len(self._sequences)
        sequences = [self._sequence(chunk, first + place) for place, chunk in enumerate(chunks)]
        self._sequences += sequences
        longest = max(map(len, sequences)) + self._params.max_frames + self._loaded.talker.config.codebooks - 1
        with self._loaded.runner_for(len(sequences), longest) as runner:
            self._run(runner, sequences)

    def _sequence(self, chunk: str, index: int) -> Sequence:
        sequence = self._builder.build(chunk, self._voice, self._scene, params=self._params, index=index)
        self._warnings += sequence.warnings
        sequence.budget = self._budget(len(sequence))
        if sequence.budget < FRAME_RATE:
            remedies = ["Load the model with a larger context"]
            remedies += ["use a shorter reference clip"] if self._given is not None else []
            remedies += [] if self._params.chunk_seconds else ["set chunk_seconds above 0, so that the text is split"]
            raise HiggsError(
                f"Text and voice take {len(sequence)} of {self._loaded.context} positions, which leaves less than "
                f"a second for speech. {', or '.join(remedies)}."
            )
        return sequence

    def _run(self, runner: ModelRunner, sequences: list[Sequence]):
        self._warnings += runner.notes
        rows = min(runner.state.batch, len(sequences))
        self._how = self._loaded.describe(runner) + (f", {rows} chunks at a time" if rows > 1 else "")
        self._waveform.windows.serialize = rows == 1
        # A voice made of this text's first chunk is of no use to the next call.
        prefixes = self._loaded.prefixes if self._voice is self._given else PrefixCache(runner.pool, 1)
        with Scheduler(runner, sequences, prefixes, self._waveform.low_latency_frames) as scheduler:
            for outputs in scheduler:
                for sequence, frames in outputs:
                    self._count(sequence, len(frames))
                if outputs:
                    self._speak()
                self._hear(self._waveform.poll())
                self._tick()

    def _count(self, sequence: Sequence, frames: int):
        """Frames of a sequence that have become final."""
        self._done += frames
        self._remaining += sequence.remaining - max(0, sequence.expected - sequence.num_frames + frames)

    def _speak(self):
        """Puts what is next in the text's order into the waveform."""
        while self._current < len(self._sequences):
            sequence = self._sequences[self._current]
            if self._pieces == 0 and sequence.codes:
                self._pause(self._current)
            while self._pieces < len(sequence.codes):
                self._pieces += 1
                for wav in self._waveform.push(sequence.codes[self._pieces - 1], self._current == 0):
                    self._hear(wav)
                    self._tick()
            if not sequence.finished:
                return
            self._current, self._pieces = self._current + 1, 0

    def _pause(self, place: int):
        """The silence before a chunk, or after the last."""
        if self._silences[place]:
            self._hear(self._waveform.pause(self._silences[place]))

    def _hear(self, wav: torch.Tensor):
        if len(wav) and self._on_audio is not None:
            self._on_audio(wav)

    def _tick(self):
        self._on_frame(self._done, self._done + self._remaining)

    def _self_reference(self, chunks: list[str]) -> Voice | None:
        """The first chunks as a voice; their transcript only where the whole of it is heard."""
        codes = torch.cat([piece for sequence in self._sequences for piece in sequence.codes])
        if not len(codes):
            return None
        most = min(_SELF_REFERENCE_FRAMES, self._loaded.context // 3)  # it may have run on, and others must fit too
        whole = all(sequence.ended for sequence in self._sequences) and len(codes) <= most
        codes = codes.masked_fill(codes >= CODEBOOK_SIZE, 0)[:most]
        return Voice(codes, " ".join(chunks) if whole else None, "first chunk")
