"""Three texts spoken with an adapter between steps. They decide which adapter is kept: a loss cannot hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.config import FRAME_RATE, Adapter, EngineConfig, SamplingParams
from ..engines.engine import Engine
from ..prompt.chunking import estimate_seconds
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener
from ..voice.voice import Voice
from .lessons import references
from .rows import Utterance

TOO_LONG = 3.0  # times the estimate, as Qwen3-TTS's trainers refuse adapters that do not stop
_SPARE = 2.0  # seconds more, for a single word
_MOST_CHARACTERS = 150


@dataclass(frozen=True)
class Trial:
    """One speech per text. endless: says which one was too long first; empty if none was."""

    speeches: tuple[SpeechResult, ...]
    endless: str

    @property
    def doubts(self) -> int:
        """Number of words that the check doubts."""
        return sum(len(speech.doubts) for speech in self.speeches)


class Audition:
    """Speaks texts of clips that are held out, one of them a single word, in the voice of a clip that was learned."""

    def __init__(self, config: EngineConfig, learned: Sequence[Utterance], held_out: Sequence[Utterance]):
        self._config = config
        best = max(references(learned), key=lambda one: len(one.codes))
        self._voice = Voice(best.codes, best.text, best.name)
        texts = sorted((one.text for one in held_out if len(one.text) <= _MOST_CHARACTERS), key=len)
        texts = texts or [held_out[0].text[:_MOST_CHARACTERS]]
        word = max((word.strip(".,;:!?\"'()") for word in " ".join(texts).split()), key=len)
        self.texts = tuple(dict.fromkeys((word, texts[len(texts) // 2], texts[-1])))

    def __call__(self, adapter: Path, on_frame: Callable[[int, int], None] | None = None) -> Trial:
        """Speak with an adapter. Opens an engine for it, and closes it. on_frame: see `Listener`."""
        speeches, endless = [], ""
        with Engine(replace(self._config, adapters=(Adapter(str(adapter)),))) as engine:
            for text in self.texts:
                most = TOO_LONG * estimate_seconds(text) + _SPARE
                frames = min(int(most * FRAME_RATE) + 1, SamplingParams.max_frames)
                speech = engine.speak(
                    text, self._voice, SamplingParams(max_frames=frames, retries=0), listener=Listener(on_frame)
                )
                speeches.append(speech)
                if not speech.complete and not endless:
                    endless = f"“{text}” had not ended after {speech.seconds:.1f} s"
        return Trial(tuple(speeches), endless)
