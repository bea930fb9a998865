"""Public speech API, shared by one engine, several, servers and a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

import torch

from ..core.config import SamplingParams
from ..prompt.card import ModelCard
from ..prompt.script import Turn
from ..speech.decoder import Decoder
from ..speech.drive import speak
from ..speech.kept_codes import KeptCodes, SequenceStore
from ..speech.request import SpeechRequest
from ..speech.result import SpeechResult
from ..speech.speech_input import DialogueOptions, Listener, SpeechInput
from ..voice.clip import Wave
from ..voice.voice import Voice


class SpeechAPI(ABC):
    """`speak` and `speak_turns`, of anything that has a decoder."""

    kept: KeptCodes
    card: ModelCard
    context: int  # positions of a sequence
    model: str  # its name

    @property
    def devices(self) -> int:
        """Number of devices that decode together."""
        return 1

    def speak(
        self,
        text: str,
        voice: Voice | None = None,
        params: SamplingParams | None = None,
        scene: str | None = None,
        listener: Listener | None = None,
    ) -> SpeechResult:
        """Speak `text`; the engine must be open.

        Long text is split at sentence ends into sequences that decode together; without a voice the first one is spoken
        alone and is the voice of the rest. `scene` is v2's description of the recording. Raises HiggsError for empty
        text, a prompt that does not fit the context, for a voice of another codec, and when the engine is closed
        meanwhile.
        """
        voices = {} if voice is None else {"": voice}
        return self._speak(SpeechInput((Turn("", text),), voices, params or SamplingParams(), scene), listener, None)

    def speak_turns(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice] = MappingProxyType({}),
        params: SamplingParams | None = None,
        scene: str | None = None,
        listener: Listener | None = None,
        reuse: bool | SequenceStore = True,
        even: bool = True,
    ) -> SpeechResult:
        """Speak a dialogue, all of its turns together; see `speak` for what both have.

        voices: by speaker. One without gets its own from seed and name: its first words are the voice of the rest.
        reuse: what this engine has said before comes from its codes, which stay on the host, or a caller's store has
        it, which gets every sequence once it is spoken. even: the result's turns are equally loud, but for settings;
        a listener gets them as they are spoken. Raises HiggsError as `speak` does, and where no turn has a word.
        """
        kept = self.kept if reuse is True else None if reuse is False else reuse
        what = SpeechInput(turns, voices, params or SamplingParams(), scene)
        return self._speak(what, listener, DialogueOptions(kept, even))

    @torch.inference_mode()
    def _speak(self, what: SpeechInput, listener: Listener | None, dialogue: DialogueOptions | None) -> SpeechResult:
        listener = listener or Listener()
        with (
            self.decoding(lambda: listener.on_frame and listener.on_frame(0, 1)) as decoder,
            self.request(what, listener, dialogue) as request,
        ):
            speech = speak(request, decoder)
        return self.with_warnings(speech, what.turns)

    @abstractmethod
    def knows_tag(self, tag: str) -> bool:
        """Tell whether the checkpoint follows a control tag, as far as its files say."""

    @abstractmethod
    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """A reference clip [S] or [C, S] as a voice, while nothing else is spoken.

        Raises HiggsError for a clip that is silent, not finite, under 1 s or over 30 s.
        """

    @abstractmethod
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> AbstractContextManager[Decoder]:
        """The decoder, for one thread and the length of a `with`.

        on_wait() is called while something is waited for, and may raise. Raises HiggsError when nothing is open.
        """

    @abstractmethod
    def request(self, what: SpeechInput, listener: Listener, dialogue: DialogueOptions | None = None) -> SpeechRequest:
        """Check the voices and make the request. Raises HiggsError for a voice of another codec."""

    @abstractmethod
    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        """Add what the checkpoint's card and adapters have to say."""
