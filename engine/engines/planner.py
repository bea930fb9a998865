"""Planner: what a model reads and follows. It makes requests of texts, and needs no device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from ..checkpoint.digest import fingerprint_of
from ..checkpoint.load import Checkpoint
from ..core.config import FRAME_RATE, EngineConfig, SamplingParams
from ..core.errors import HiggsError
from ..core.sequence import Sequence as Decoded
from ..prompt.builder import PromptBuilder
from ..prompt.card import ModelCard, read_card
from ..prompt.script import Turn, read_pauses
from ..prompt.sequences import Prompts
from ..prompt.spell_out import spell_out
from ..prompt.tags import TAGS
from ..speech.kept_codes import KeptCodes
from ..speech.request import SpeechRequest
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener, SpeechInput
from ..voice.voice import Voice


class Planner(ABC):
    """Plans text for one model.

    kept: codes that it has spoken. context: maximum positions of a sequence. model: its name. codebooks:
    of its codes. codec: of its voices.
    """

    kept: KeptCodes
    card: ModelCard
    context: int
    model: str
    codebooks: int
    codec: str
    prompts: Prompts

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of what determines the codes beside voice, text and settings."""

    @abstractmethod
    def check_voice(self, name: str, voice: Voice) -> None:
        """Raise HiggsError if a speaker's voice is of another model."""

    def knows_tag(self, tag: str) -> bool:
        """True if the model follows a control tag, according to its files."""
        return self.prompts.follows(tag)

    def is_spoken(self, text: str) -> bool:
        """True if the model speaks a text: it has a letter, a digit, or an effect that the model knows."""
        return self.prompts.is_spoken(read_pauses(text).text, lambda warning: None)

    def notes(self) -> tuple[str, ...]:
        return ()

    def request(self, given: SpeechInput, listener: Listener) -> SpeechRequest:
        """Check the voices and make the request. Raises HiggsError if a voice is of another codec."""
        for name, voice in given.voices.items():
            self.check_voice(name, voice)
        return SpeechRequest(self.prompts, (self.context, self.codebooks), given, listener)

    def chunk(
        self, text: str, voice: Voice | None, scene: str | None, params: SamplingParams, index: int, budget: int
    ) -> Decoded:
        """Build the sequence of one chunk that was planned elsewhere. budget: most frames; fewer if they do not fit.

        Raises HiggsError if the chunk cannot be spoken.
        """
        if voice is not None:
            self.check_voice("", voice)
        sequence = self.prompts.build(text, voice, scene, params=params, index=index)
        room = self.context - len(sequence) - self.codebooks + 1
        sequence.budget = min(budget, room)
        if room < FRAME_RATE:
            raise HiggsError(
                f"Text and voice take {len(sequence)} of {self.context} tokens, which leaves less than a second for "
                "speech. Load the model with a larger context."
            )
        return sequence

    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        """Add the warnings of the model and its card."""
        # Of the whole text, not per chunk: one warning per call, and language detection needs length.
        of_text = self.card.warnings("\n".join(turn.text for turn in turns))
        return replace(speech, warnings=tuple(dict.fromkeys([*speech.warnings, *self.notes(), *of_text])))

    def followed_card(self) -> ModelCard:
        """Return the card with the tags that the model follows, or None as `tags` if it follows all."""
        known = tuple(filter(self.knows_tag, TAGS))
        return replace(self.card, tags=None if len(known) == len(TAGS) else known)

    def read_as(self, text: str) -> str:
        """Return what the model says for a text, as far as its card spells it out; else the text as it is.

        Pronunciations are part of the text: apply them before.
        """
        return spell_out(text, self.card.spell_out).text


class CheckpointPlanner(Planner):
    """Plans text for a checkpoint on this machine. Reads its tokenizer and card."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig):
        self._checkpoint, self._config = checkpoint, config
        self.kept, self.card = KeptCodes(), read_card(checkpoint.folder)
        self.context = min(config.context, checkpoint.config.max_context)
        self.model, self.codebooks = checkpoint.folder.resolve().name, checkpoint.config.codebooks
        self.codec = checkpoint.codec.config.name
        self.prompts = self.builder = PromptBuilder(checkpoint.tokenizer, checkpoint.config, self.card)

    @property
    def fingerprint(self) -> str:
        """Digest of weights and precision. With voice, text and settings, it determines the codes."""
        return fingerprint_of(self._checkpoint, self._config)

    def check_voice(self, name: str, voice: Voice) -> None:
        if voice.codec not in ("", self.codec):
            raise HiggsError(
                f"The voice{f' of {name}' if name else ''} was made with a different model and does not work with this "
                "one. Create it again from its clip."
            )

    def notes(self) -> tuple[str, ...]:
        return self._checkpoint.warnings
