"""Three texts spoken with an adapter between steps. They decide which adapter is kept: a loss cannot hear."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..checkpoint.codec_layout import CodecWeights
from ..codec.model import build_decoder
from ..core.config import FRAME_RATE, SAMPLE_RATE, Adapter, SamplingParams
from ..engines.engine import Engine
from ..preview.likeness import likeness_to
from ..preview.transcribe import transcriber
from ..prompt.chunking import estimate_seconds
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener
from ..voice.voice import Voice
from ..words.whisper_check import misheard
from .lessons import references
from .rows import Utterance

TOO_LONG = 3.0  # times the estimate, as Qwen3-TTS's trainers refuse adapters that do not stop
STRENGTHS = (1.0, 0.65, 0.3)  # 1.0 may over-steer, and some found 0.3 stable; of equals the first is chosen
_SPARE = 2.0  # seconds more, for a single word
_MOST_CHARACTERS = 150
_COMPARED = 8  # clips that are held out whose voice is compared
_ALIKE = 0.02  # of likeness, that makes no difference


@dataclass(frozen=True)
class Trial:
    """One speech per text at a strength. endless: says which one was too long first; empty if none was.

    doubts: words that the check doubts. misheard: words that Whisper understands otherwise. likeness: cosine to the
    clips that are held out. length: times the estimate. misheard and likeness are NaN if nothing measures them.
    """

    strength: float
    speeches: tuple[SpeechResult, ...]
    endless: str = ""
    length: float = 1.0
    misheard: float = math.nan
    likeness: float = math.nan

    @property
    def doubts(self) -> int:
        """Number of words that the check doubts."""
        return sum(len(speech.doubts) for speech in self.speeches)

    @property
    def wrong(self) -> float:
        """Number of words that the check doubts or Whisper understands otherwise."""
        return self.doubts + (0 if math.isnan(self.misheard) else self.misheard)

    def rank(self, untouched: float, loss: float) -> list[float]:
        """Return what is lower for a better adapter: words beyond those of the untouched model, likeness, the loss."""
        alike = 0.0 if math.isnan(self.likeness) else -round(self.likeness / _ALIKE)
        return [max(0.0, self.wrong - untouched), alike, loss]

    def entry(self) -> dict[str, float]:
        """Return its figures for a report, without those that nothing measured."""
        kept = ("strength", "doubts", "misheard", "wrong", "likeness", "length")
        figures = {name: getattr(self, name) for name in kept} | {"endless": bool(self.endless)}
        return {name: figure for name, figure in figures.items() if not math.isnan(figure)}


class Audition:
    """Speaks texts of clips that are held out, one of them a single word, in the voice of a clip that was learned.

    whisper: folder of a Whisper, which then hears the words. resemblyzer, if it is installed, compares voices.
    """

    def __init__(
        self, engine: Engine, learned: Sequence[Utterance], held_out: Sequence[Utterance], whisper: Path | None = None
    ):
        self._config, self._device, self._whisper = engine.config, engine.device, whisper
        best = max(references(learned), key=lambda one: len(one.codes))
        self._voice = Voice(best.codes, best.text, best.name)
        texts = sorted((one.text for one in held_out if len(one.text) <= _MOST_CHARACTERS), key=len)
        texts = texts or [held_out[0].text[:_MOST_CHARACTERS]]
        word = max((word.strip(".,;:!?\"'()") for word in " ".join(texts).split()), key=len)
        self.texts = tuple(dict.fromkeys((word, texts[len(texts) // 2], texts[-1])))
        self._likeness = functools.cache(lambda: _likeness_to(engine.checkpoint.codec, held_out[:_COMPARED]))

    def __call__(
        self,
        adapter: Path | None,
        strengths: Sequence[float] = STRENGTHS,
        on_frame: Callable[[int, int], None] | None = None,
    ) -> list[Trial]:
        """Speak with an adapter, or without, at each strength. Opens an engine for it. on_frame: see `Listener`."""
        trials = [self._spoken(adapter, strength, on_frame) for strength in strengths]
        likeness = self._likeness()
        with contextlib.ExitStack() as stack:
            hear = stack.enter_context(transcriber(self._whisper, self._device)) if self._whisper else None
            return [
                replace(
                    trial,
                    likeness=likeness(torch.cat([speech.wav for speech in trial.speeches])) if likeness else math.nan,
                    misheard=self._misheard(hear, trial) if hear else math.nan,
                )
                for trial in trials
            ]

    def _spoken(self, adapter: Path | None, strength: float, on_frame: Callable[[int, int], None] | None) -> Trial:
        speeches, endless = [], ""
        adapters = () if adapter is None else (Adapter(str(adapter), strength),)
        with Engine(replace(self._config, adapters=adapters)) as engine:
            for text in self.texts:
                most = TOO_LONG * estimate_seconds(text) + _SPARE
                frames = min(int(most * FRAME_RATE) + 1, SamplingParams.max_frames)
                speech = engine.speak(
                    text, self._voice, SamplingParams(max_frames=frames, retries=0), listener=Listener(on_frame)
                )
                speeches.append(speech)
                if not speech.complete and not endless:
                    endless = f"“{text}” had not ended after {speech.seconds:.1f} s"
        seconds = sum(speech.seconds for speech in speeches)
        return Trial(strength, tuple(speeches), endless, seconds / sum(map(estimate_seconds, self.texts)))

    def _misheard(self, hear: Callable[[torch.Tensor, int], str], trial: Trial) -> int:
        return sum(
            misheard(text, hear(speech.wav, SAMPLE_RATE) if len(speech.wav) else "")
            for text, speech in zip(self.texts, trial.speeches, strict=True)
        )


def _likeness_to(codec: CodecWeights, clips: Sequence[Utterance]) -> Callable[[torch.Tensor], float] | None:
    decoder = build_decoder(codec.config, codec.read("decoder", torch.device("cpu")))
    with torch.inference_mode():
        return likeness_to([decoder.decode(one.codes.T[None])[0] for one in clips])
