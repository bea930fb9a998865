"""One call of speak: turns of text as sequences that decode together, and one waveform in the text's order.

Knows neither layers nor kernels, and what decodes the sequences only as a model runner.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

import torch

from . import ending
from .audio.loudness import evening_gain
from .codec.waveform import Waveform
from .codes import CODEBOOK_SIZE
from .config import FRAME_RATE, FRAME_SAMPLES, SAMPLE_RATE, SamplingParams
from .decode.kept_codes import KeptCodes
from .decode.model_runner import ModelRunner
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Scheduler
from .errors import HiggsError
from .loaded_model import LoadedModel
from .prompt.builder import PromptBuilder
from .prompt.chunking import estimate_frames, estimate_seconds
from .prompt.plan import Chunk, plan
from .prompt.script import Script, Turn
from .result import SpeechResult, SpokenTurn
from .sequence import Sequence
from .voice.clip import MAX_CLIP_SECONDS
from .voice.voice import Voice

_SELF_REFERENCE_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)
_LEAST_REFERENCE_FRAMES = 3 * FRAME_RATE  # of a speaker's first chunks, where turns or pauses make them short
_LENGTH_MARGIN = 1.5  # context kept free for a chunk, as a multiple of its estimated length
_LEAST_SECONDS = 2.0  # however small the context: shorter chunks are not sentences
_SEEDS = 1 << 64


@dataclass(frozen=True)
class Listener:
    """Whom a request tells: `on_frame(done, expected)` and `on_audio(wav)` as for `Engine.speak`; both may raise."""

    on_frame: Callable[[int, int], None]
    on_audio: Callable[[torch.Tensor], None] | None = None


@dataclass(frozen=True)
class DialogueOptions:
    """What a request of several speakers has that one text has not."""

    kept: KeptCodes | None  # where chunks that have been said before come from, and those of now go to
    even: bool  # turns get the same loudness, once all is spoken


class SpeechRequest:
    """Speaks turns. A speaker without a voice gets one: the first of what it says is the voice of the rest.

    dialogue: None for one text. Of a dialogue the noise is numbered by how often the same speaker has said the same
    before, so that a turn more or less changes no other; and a speaker's own voice depends on its name.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        builder: PromptBuilder,
        turns: Ordered[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ):
        self._loaded, self._builder, self._listener = loaded, builder, listener
        self._turns, self._params, self._scene = turns, params, scene
        self._given, self._voices = voices, dict(voices)
        self._dialogue, self._reused = dialogue, 0
        self._kept = dialogue.kept if dialogue else None
        self._waveform = Waveform(loaded.decoder, loaded.pool, streamed=listener.on_audio is not None)
        self._warnings: list[str] = []
        self._chunks: list[Chunk] = []  # in the text's order, and so are their sequences
        self._sequences: list[Sequence | None] = []
        self._last_silence = 0.0
        self._current = self._pieces = 0  # the sequence that is heard now, and how many pieces of its codes were
        self._done = self._remaining = 0  # frames, over the whole text
        self._how = ""

    def __enter__(self) -> SpeechRequest:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lets go of the engine's parts: an exception that ends the call refers to this object for longer."""
        self._waveform.close()
        with contextlib.suppress(AttributeError):  # closed before
            del self._loaded, self._listener, self._kept, self._dialogue

    def run(self) -> SpeechResult:
        """The whole text. Raises HiggsError for a prompt that does not fit and for sound that is not finite."""
        began = time.perf_counter()
        planned = plan(self._turns, self._params, self._dialogue is not None, self._chunk_seconds)
        self._chunks, self._last_silence = planned.chunks, planned.last_silence
        self._warnings += planned.warnings
        if not self._chunks:
            raise HiggsError("There is nothing to say: the script has no word. Enter some text.")
        self._remaining = sum(estimate_frames(chunk.text) for chunk in self._chunks)
        self._sequences = [None] * len(self._chunks)
        while places := self._reference_places():
            self._decode(places)
            for speaker in {self._chunks[place].speaker for place in places}:
                self._refer(speaker)
        self._decode([place for place, sequence in enumerate(self._sequences) if sequence is None])
        if self._last_silence:
            self._hear(self._waveform.pause(self._last_silence))
        self._hear(self._waveform.finish())
        sequences = self._spoken()
        none = torch.empty((0, self._loaded.talker.config.codebooks), dtype=torch.int64)
        codes = torch.cat([none, *(piece for sequence in sequences for piece in sequence.codes)])
        limits = sequences, self._params.max_frames, self._loaded.context
        wav, spans = self._waveform.whole(), self._spans()
        if self._dialogue:
            self._set_volumes(wav, spans, self._dialogue.even)
        return SpeechResult(
            wav,
            codes,
            time.perf_counter() - began,
            len(self._chunks),
            ending.stopped(*limits),
            tuple(dict.fromkeys([*ending.warnings(*limits), *self._warnings])),
            self._how or "none, all of it had been spoken before",
            tuple(SpokenTurn(self._turns[n].speaker, self._turns[n].text, *span) for n, span in spans.items()),
            self._reused,
        )

    def _reference_places(self) -> list[int]:
        """The next chunk of every speaker that still needs a voice for what comes later.

        That is its first one; where a pause or its turn's end makes that short, also the next.
        """
        places = []
        for speaker in dict.fromkeys(chunk.speaker for chunk in self._chunks):
            if speaker in self._given:
                continue
            own = [place for place, chunk in enumerate(self._chunks) if chunk.speaker == speaker]
            spoken = [sequence for place in own if (sequence := self._sequences[place]) is not None]
            if len(spoken) == len(own) or len(own) == 1:
                continue
            short = sum(sequence.num_frames for sequence in spoken) < _LEAST_REFERENCE_FRAMES
            if not spoken or (short and self._chunks[own[len(spoken)]].silence is not None):
                places.append(own[len(spoken)])
        return places

    def _refer(self, speaker: str):
        """What the speaker has said so far becomes its voice; its transcript only where the whole of it is heard."""
        own = [
            (chunk.text, sequence)
            for chunk, sequence in zip(self._chunks, self._sequences, strict=True)
            if chunk.speaker == speaker and sequence is not None
        ]
        codes = torch.cat([piece for _, sequence in own for piece in sequence.codes])
        if not len(codes):
            return
        most = min(_SELF_REFERENCE_FRAMES, self._loaded.context // 3)  # it may have run on, and others must fit too
        whole = all(sequence.ended for _, sequence in own) and len(codes) <= most
        codes = codes.masked_fill(codes >= CODEBOOK_SIZE, 0)[:most]
        self._voices[speaker] = Voice(codes, " ".join(text for text, _ in own) if whole else None, "first chunk")

    def _chunk_seconds(self, script: Script, speaker: str) -> float:
        """As asked for, or as much shorter as it takes for a chunk to fit behind its voice; 0 still never splits.

        Without a voice the first chunk is the voice of the others, and both must fit.
        """
        wanted, voice = self._params.chunk_seconds, self._given.get(speaker)
        if not wanted:
            return wanted
        overhead, tokens = self._builder.measure(script.text, voice, self._scene)
        seconds = max(1.0, estimate_seconds(script.text))
        per_second = FRAME_RATE * _LENGTH_MARGIN + tokens / seconds  # positions a second of speech
        fits = self._budget(overhead) / per_second
        if voice is None and (self._dialogue or seconds > min(wanted, fits)):
            fits /= 2
        return min(wanted, max(fits, _LEAST_SECONDS))

    def _budget(self, positions: int) -> int:
        """Frames that a prompt of so many positions leaves room for."""
        return self._loaded.context - positions - self._loaded.talker.config.codebooks + 1

    def _decode(self, places: list[int]):
        """Speaks these chunks, all of them before the first one starts known to fit."""
        if not places:
            return
        sequences = []
        for place in places:
            self._sequences[place] = sequence = self._sequence(self._chunks[place])
            if self._kept is not None and self._kept.fill(sequence):
                self._reused += 1
                self._remaining -= sequence.expected
            else:
                sequences.append(sequence)
        if not sequences:
            self._speak()
            return
        longest = max(map(len, sequences)) + self._params.max_frames + self._loaded.talker.config.codebooks - 1
        with self._loaded.runner_for(len(sequences), longest, alone=self._dialogue is None) as runner:
            self._run(runner, sequences, waited_for=self._sequences[self._current] is sequences[0])

    def _sequence(self, chunk: Chunk) -> Sequence:
        voice, params = self._voices.get(chunk.speaker), chunk.params
        if voice is None and chunk.speaker:  # each has a voice of its own
            params = replace(params, seed=(params.seed + zlib.crc32(chunk.speaker.encode())) % _SEEDS)
        sequence = self._builder.build(chunk.text, voice, self._scene, params=params, index=chunk.index)
        self._warnings += sequence.warnings
        sequence.budget = self._budget(len(sequence))
        if sequence.budget < FRAME_RATE:
            remedies = ["Load the model with a larger context"]
            remedies += ["use a shorter reference clip"] if chunk.speaker in self._given else []
            remedies += [] if self._params.chunk_seconds else ["set chunk_seconds above 0, so that the text is split"]
            raise HiggsError(
                f"Text and voice take {len(sequence)} of {self._loaded.context} positions, which leaves less than "
                f"a second for speech. {', or '.join(remedies)}."
            )
        return sequence

    def _run(self, runner: ModelRunner, sequences: list[Sequence], waited_for: bool):
        self._warnings += runner.notes
        rows = min(runner.state.batch, len(sequences))
        self._how = self._loaded.describe(runner) + (f", {rows} chunks at a time" if rows > 1 else "")
        self._waveform.windows.serialize = rows == 1
        low_latency_frames = self._waveform.low_latency_frames if waited_for else 0
        with Scheduler(runner, sequences, self._prefixes(runner), low_latency_frames) as scheduler:
            for outputs in scheduler:
                for sequence, frames in outputs:
                    self._count(sequence, len(frames))
                    if sequence.finished and self._kept is not None:
                        self._kept.keep(sequence)
                if outputs:
                    self._speak()
                self._hear(self._waveform.poll())
                self._tick()

    def _prefixes(self, runner: ModelRunner) -> PrefixCache:
        """The engine's for a given voice; a voice made of this text, or one of a dialogue, is of no use to the next."""
        if self._dialogue is None and self._voices.keys() == self._given.keys():
            return self._loaded.prefixes
        return PrefixCache(runner.pool, max(1, len(self._voices)))

    def _count(self, sequence: Sequence, frames: int):
        """Frames of a sequence that have become final."""
        self._done += frames
        self._remaining += sequence.remaining - max(0, sequence.expected - sequence.num_frames + frames)

    def _speak(self):
        """Puts what is next in the text's order into the waveform."""
        while self._current < len(self._sequences):
            sequence = self._sequences[self._current]
            if sequence is None:
                return
            silence = self._chunks[self._current].silence
            if self._pieces == 0 and sequence.codes and silence is not None:
                self._hear(self._waveform.pause(silence))
            while self._pieces < len(sequence.codes):
                self._pieces += 1
                for wav in self._waveform.push(sequence.codes[self._pieces - 1], self._current == 0):
                    self._hear(wav)
                    self._tick()
            if not sequence.finished:
                return
            self._current, self._pieces = self._current + 1, 0

    def _hear(self, wav: torch.Tensor):
        if len(wav) and self._listener.on_audio is not None:
            self._listener.on_audio(wav)

    def _tick(self):
        self._listener.on_frame(self._done, self._done + self._remaining)

    def _spoken(self) -> list[Sequence]:
        return [sequence for sequence in self._sequences if sequence is not None]

    def _spans(self) -> dict[int, tuple[int, int]]:
        """Turn -> the samples where it starts and stops; one without a word has none."""
        at, spans = 0, {}
        for chunk, sequence in zip(self._chunks, self._spoken(), strict=True):
            at += round((chunk.silence or 0.0) * SAMPLE_RATE)
            start = spans[chunk.turn][0] if chunk.turn in spans else at
            at += sequence.num_frames * FRAME_SAMPLES
            spans[chunk.turn] = start, at
        return spans

    def _set_volumes(self, wav: torch.Tensor, spans: Mapping[int, tuple[int, int]], even: bool):
        """Turns as loud as each other, each by its own sound alone, then as their settings say."""
        for number, (start, stop) in spans.items():
            spoken, volume = wav[start:stop], self._turns[number].volume
            gain = volume * (evening_gain(spoken) if even else 1.0)
            if gain != 1.0:
                spoken.mul_(gain).clamp_(-1.0, 1.0)
