"""Texts spoken with an adapter between steps. They decide which adapter is kept: a loss cannot hear."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.codec_layout import CodecWeights
from ..codec.model import build_decoder
from ..core.config import FRAME_RATE, Adapter, SamplingParams
from ..engines.engine import Engine
from ..prompt.chunking import estimate_seconds
from ..prompt.script import Turn
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener
from ..voice.likeness import likeness_to
from ..voice.voice import Voice
from ..words.letters import words_of
from ..words.transcribe import transcriber
from ..words.whisper_check import misheard_in
from .lessons import references
from .rows import Utterance

TOO_LONG = 3.0  # times the estimate. Qwen3-TTS's trainers refuse adapters that do not stop
_LATE = 0.05  # share of texts that may be too long: then all their words are wrong, else the adapter is refused
STRENGTHS = (1.0, 0.65, 0.3)  # 1.0 may over-steer, and some found 0.3 stable: tried while the one before misreads
WORDS = 100  # at least, with a clip and without: of fewer, twice as many wrong ones may be chance
# Times the untouched model's wrong words in the mean of both, and share of all: so many are chance. With 1.5 and 0.02,
# LoRAs were kept that misread twice as much as it (`voice_gpu` in benchmarks/results/train.json).
_CHANCE = 1.25, 0.015
_SPARE = 2.0  # seconds more, for a single word
_LONGEST, _CUT = 9.0, 40  # seconds of a text; characters of one if all are longer
USES = "With a clip as the voice", "Without a clip"
_REMEDY = "Record more speech, or train fewer steps."
_DEAF = "Only words left out or said again were noticed. Choose a Whisper model, which also hears misread ones."
_CLIP = "clip"  # the speaker who has its voice. Others have none, and a turn each
_COMPARED = 8  # clips that are held out whose voice is compared
_ALIKE = 0.02  # of likeness, that makes no difference


@dataclass(frozen=True)
class Trial:
    """Speech of each text with a clip as the voice, then without. endless: says which was too long, empty if none.

    words: number of words of each use. wrong: of them, see USES. likeness: cosine to held-out clips, 0 if unmeasured.
    """

    strength: float
    speech: SpeechResult | None
    endless: str = ""
    words: int = 1
    wrong: Sequence[int] = (0, 0)
    likeness: float = 0.0

    def misread(self, untouched: Mapping[str, Any]) -> list[float]:
        """Return how many words of each use are wrong beyond chance, by the entry of the untouched model."""
        times, share = _CHANCE
        most = times * sum(untouched["wrong"]) / len(USES) + share * self.words
        return [max(0.0, wrong - most) for wrong in self.wrong]

    def rank(self, untouched: Mapping[str, Any], loss: float) -> list[float]:
        """Return what is lower for a better adapter: misread words, likeness, the loss. untouched: see `misread`."""
        return [sum(self.misread(untouched)), -round(self.likeness / _ALIKE), loss]

    def entry(self) -> dict[str, Any]:
        """Return its figures for a report."""
        kept = "strength", "words", "wrong", *["likeness"] * bool(self.likeness)
        return {name: getattr(self, name) for name in kept} | {"endless": bool(self.endless)}


class Audition:
    """Speaks texts of clips that are held out, one of them a single word, as one dialogue: in the voice of a clip that
    was learned, and without a clip.

    whisper: folder of a Whisper, which then hears the words, beside the check. resemblyzer, if it is installed,
    compares voices.
    """

    def __init__(
        self, engine: Engine, learned: Sequence[Utterance], held_out: Sequence[Utterance], whisper: Path | None = None
    ):
        self._engine, self._config, self._device, self._whisper = engine, engine.config, engine.device, whisper
        best = max(references(learned), key=lambda one: len(one.codes))
        self._voice = Voice(best.codes, best.text, best.name)
        most = min(_LONGEST, engine.planner.prompts.chunk_seconds)  # each is one chunk
        self.texts = _texts([one.text for one in held_out], most)
        self._likeness = functools.cache(lambda: _likeness_to(engine.checkpoint.codec, held_out[:_COMPARED]))

    @functools.cached_property
    def _heads(self) -> list[list[int]]:
        """The untouched model's aligning heads. In the speech of an adapter that babbles, none would be found."""
        with self._engine as engine:
            return [[*head] for head in engine.heads()]

    def __call__(self, adapter: Path | None, strength: float, on_frame: Callable[[int, int], None]) -> Trial:
        """Speak with an adapter at a strength, or without. Opens an engine for it. on_frame: see `Listener`."""
        trial = self._spoken(adapter, strength, on_frame)
        if trial.endless:
            return trial
        assert trial.speech is not None
        wavs = [trial.speech.wav[turn.start : turn.stop] for turn in trial.speech.turns]
        if likeness := self._likeness():
            trial = replace(trial, likeness=likeness(torch.cat(wavs[1::2])))
        if self._whisper:
            with transcriber(self._whisper, self._device) as hear:
                misheard = misheard_in(self.texts, [wavs[::2], wavs[1::2]], hear)
            trial = replace(trial, wrong=[*map(max, trial.wrong, misheard)])
        return trial

    def warnings(self, trial: Trial, untouched: Mapping[str, Any]) -> list[str]:
        """Return what is to be known about words before an adapter is used."""
        figures = zip(USES, trial.wrong, untouched["wrong"], trial.misread(untouched), strict=True)
        warnings = [
            f"{use}, {own} of {trial.words} words are wrong. Without the LoRA, {base} are. {_REMEDY}"
            for use, own, base, more in figures
            if more
        ]
        return warnings if self._whisper else [*warnings, _DEAF]

    def _spoken(self, adapter: Path | None, strength: float, on_frame: Callable[[int, int], None]) -> Trial:
        adapters = () if adapter is None else (Adapter(str(adapter), strength),)
        turns = [Turn(speaker, text) for number, text in enumerate(self.texts) for speaker in (_CLIP, str(number))]
        limits = [int(FRAME_RATE * (TOO_LONG * estimate_seconds(turn.text) + _SPARE)) for turn in turns]
        params, listener = SamplingParams(max_frames=max(limits) + 1, retries=0), Listener(on_frame)
        engine = Engine(replace(self._config, adapters=adapters))
        engine.planner.card = replace(engine.planner.card, word_heads=self._heads)
        is_checked = bool(self._heads or self._config.whisper) and not self._whisper  # who hears what else is said
        with engine:
            speech = engine.speak_turns(turns, {_CLIP: self._voice}, params, None, listener, reuse=False, even=False)
        sizes, wrong, late = [], [], []
        for turn, limit in zip(speech.turns, limits, strict=True):
            start, stop = turn.frames
            sizes.append(len(words_of(turn.text)))
            late += [turn.text] if stop - start > limit else []
            verdicts = [chunk.verdict for chunk in speech.said if start <= chunk.frames[0] < stop]
            is_other = is_checked and not (verdicts and all(verdicts))  # no speech, or not of this text
            doubts = (doubt.words for verdict in filter(None, verdicts) for doubt in verdict.doubts)
            doubtful = sum(last - first for first, last in doubts)
            wrong.append(sizes[-1] if stop - start > limit or is_other else doubtful)
        if len(late) > _LATE * len(turns):
            return Trial(strength, None, f"“{late[0]}” had not ended after {TOO_LONG:g} times its length")
        return Trial(strength, speech, "", sum(sizes[::2]), [sum(wrong[::2]), sum(wrong[1::2])])


def _texts(given: Sequence[str], most: float) -> list[str]:
    """Return a word, and texts of at most so many seconds until there are WORDS words."""
    texts = [text for text in dict.fromkeys(given) if estimate_seconds(text) <= most] or [min(given, key=len)[:_CUT]]
    chosen = [max((word.strip(".,;:!?\"'()") for word in " ".join(texts).split()), key=len)]
    more = itertools.cycle(texts)  # few texts are spoken again
    while sum(max(1, len(words_of(text))) for text in chosen) < WORDS:
        chosen.append(next(more))
    return chosen


def _likeness_to(codec: CodecWeights, clips: Sequence[Utterance]) -> Callable[[torch.Tensor], float] | None:
    decoder = build_decoder(codec.config, codec.read("decoder", torch.device("cpu")))
    with torch.inference_mode():
        return likeness_to([decoder.decode(one.codes.T[None])[0] for one in clips])
