"""Sequences for a request's chunks, each with its speaker's voice and within the context."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from ..core.config import FRAME_RATE, SamplingParams
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..voice.voice import Voice
from .card import ModelCard
from .chunking import estimate_seconds
from .plan import Chunk
from .said import SaidText
from .script import Script
from .speakers import Speakers
from .spell_out import spell_out
from .tags import TextGuard, find_markup, stage_directions

_LENGTH_MARGIN = 1.5  # context reserved for a chunk, as a multiple of its estimated length
_REFERENCE_SECONDS = 10.0  # enough for a voice; more would only lengthen every other prompt
_LEAST_SECONDS = 2.0  # minimum, however small the context; shorter chunks are not sentences


class Prompts(ABC):
    """Makes prompts for one model. guard: of its tokenizer. card: what it has learned."""

    def __init__(self, guard: TextGuard, card: ModelCard):
        self._guard, self._card, self.chunk_seconds = guard, card, card.chunk_seconds

    @abstractmethod
    def build(
        self, text: str, voice: Voice | None, scene: str | None, *, params: SamplingParams, index: int
    ) -> Sequence:
        """Return the sequence for `text`. Raises HiggsError if there is nothing to speak."""

    @abstractmethod
    def measure(self, text: str, voice: Voice | None, scene: str | None, is_rough: bool = False) -> tuple[int, int]:
        """Return (positions of a one-letter prompt, further positions of `text`). Raises as `build` does.

        is_rough: return more positions than `text` can take, without its tokens, which take time.
        """

    def follows(self, tag: str) -> bool:
        """True if the model has learned a control tag."""
        return self._guard.is_tag(tag) and self._card.allows(tag)

    def is_spoken(self, text: str, warn: Callable[[str], None]) -> bool:
        """True if the cleaned text has a letter, a digit or an effect. Reports dropped parts to `warn`."""
        return self._guard.speakable(self._guard.clean(text, warn))

    def spell_out(self, text: str) -> SaidText:
        """Return a text with what the model says of it."""
        return spell_out(text, self._card.spell_out)

    def _content(self, text: str, warn: Callable[[str], None]) -> str:
        """Return the part of `text` that is spoken. Raises HiggsError if there is none."""
        content = self._guard.clean(text, warn)
        for warning in () if self._guard.without_tags else stage_directions(content, self.follows):
            warn(warning)
        for *_, warning in itertools.islice(find_markup(content), 1):
            warn(warning)
        if not self._guard.speakable(content):
            if self._guard.has_text(content):
                raise HiggsError("There is nothing to speak: the text has no letters or digits.")
            empty = "empty without its tags" if text.strip() else "empty"
            raise HiggsError(f"There is nothing to speak: the text is {empty}. Enter some text.")
        return content


class SequenceBuilder:
    """Builds sequences for chunks within `context` positions. warnings: those of the prompt builder.

    codebooks: the delay pattern takes codebooks - 1 positions beside the frames. is_dialogue: see SpeechRequest.
    """

    def __init__(
        self,
        builder: Prompts,
        speakers: Speakers,
        params: SamplingParams,
        scene: str | None,
        context: int,
        codebooks: int,
        is_dialogue: bool,
    ):
        self._builder, self._speakers, self._params, self._scene = builder, speakers, params, scene
        self._context, self._codebooks, self._is_dialogue = context, codebooks, is_dialogue
        self.warnings: list[str] = []
        self.most_seconds = builder.chunk_seconds
        self.spell_out, self.follows = builder.spell_out, builder.follows
        self.is_limited = False  # True if that made chunks shorter than they were wanted

    def chunk_seconds(self, script: Script, speaker: str) -> tuple[float, float]:
        """Return the maximum seconds of chunks and of the first one.

        Chunks are as long as configured, or shorter if the model speaks only shorter ones well, or to fit the context
        beside their voice; 0 asks for no length. Without a voice, the first chunk becomes the voice of the others,
        which wait for it and must fit beside it. In a dialogue it is not shortened, so that a turn is split the same
        way at any place.
        """
        configured, most, voice = (
            self._params.chunk_seconds or math.inf,
            self.most_seconds,
            self._speakers.given.get(speaker),
        )
        self.is_limited |= most < min(configured, estimate_seconds(script.spoken_text))
        wanted = min(configured, most)
        first = _REFERENCE_SECONDS if voice is None and not self._is_dialogue else math.inf
        if wanted == math.inf:
            return 0.0, first
        seconds, fits = max(1.0, estimate_seconds(script.spoken_text)), 0.0
        for is_rough in (True, False):
            overhead, tokens = self._builder.measure(script.text, voice, self._scene, is_rough)
            per_second = FRAME_RATE * _LENGTH_MARGIN + tokens / seconds  # positions per second of speech
            fits = self._budget(overhead) / per_second
            if voice is None and (self._is_dialogue or seconds > min(wanted, fits)):
                fits /= 2
            if fits >= wanted:
                break
        return min(wanted, max(fits, _LEAST_SECONDS)), first

    def is_spoken(self, text: str) -> bool:
        """True if a turn has anything for the model to speak. Otherwise adds the reasons to `warnings`."""
        left_out: list[str] = []
        is_spoken = self._builder.is_spoken(text, left_out.append)
        self.warnings += () if is_spoken else left_out
        return is_spoken

    def build(self, chunk: Chunk) -> Sequence:
        """Build the chunk's sequence. Raises HiggsError if less than a second of speech fits after it."""
        params, voice = self._speakers.params_of(chunk), self._speakers.voices.get(chunk.speaker)
        sequence = self._builder.build(chunk.text, voice, self._scene, params=params, index=chunk.index)
        self.warnings += sequence.warnings
        sequence.budget = self._budget(len(sequence))
        if sequence.budget < FRAME_RATE:
            remedies = ["Load the model with a larger context"]
            remedies += ["use a shorter reference clip"] if chunk.speaker in self._speakers.given else []
            remedies += [] if self._params.chunk_seconds else ["set chunk_seconds above 0, so that the text is split"]
            raise HiggsError(
                f"Text and voice take {len(sequence)} of {self._context} tokens, which leaves less than "
                f"a second for speech. {', or '.join(remedies)}."
            )
        return sequence

    def build_passage(self, chunk: Chunk, text: str, voice: Voice | None, seed: int) -> Sequence:
        """Build the sequence of some sentences of a chunk, in a voice. It is not kept in a prefix cache."""
        params = replace(chunk.params, seed=seed)
        sequence = self._builder.build(text, voice, self._scene, params=params, index=chunk.index)
        sequence.prefix = 0 if voice is not self._speakers.voices.get(chunk.speaker) else sequence.prefix
        sequence.budget = self._budget(len(sequence))
        return sequence

    def _budget(self, positions: int) -> int:
        """Return the frames that fit the context after a prompt of `positions`."""
        return self._context - positions - self._codebooks + 1
