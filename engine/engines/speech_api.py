"""Public speech API, shared by single engines, device pools, servers and clusters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType

import torch

from ..core.config import SamplingParams
from ..prompt.script import Turn
from ..speech.decoder import Decoder
from ..speech.drive import speak
from ..speech.kept_codes import SequenceStore
from ..speech.result import SpeechResult
from ..speech.speech_input import Listener, SpeechInput
from ..voice.clip import Wave
from ..voice.voice import Voice
from ..words.attention import Head
from ..words.estimate import estimate
from ..words.letters import mark_words
from ..words.word import Word
from .planner import Planner


class SpeechAPI(ABC):
    """`speak` and `speak_turns` for any decoder."""

    planner: Planner

    @property
    def devices(self) -> int:
        """Number of devices that decode together."""
        return 1

    @abstractmethod
    def __enter__(self) -> SpeechAPI:
        """Open, which may be repeated after the end. Raises HiggsError and torch.OutOfMemoryError."""

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Close, and free what `__enter__` took."""

    @property
    def kind(self) -> str:
        """Kind of its devices: of one kind, they make the same samples. Empty if they are of several."""
        return ""

    @property
    def fingerprint(self) -> str:
        """See `Planner`."""
        return self.planner.fingerprint

    def workers(self) -> list[dict[str, object]]:
        """Return machine, process, device and state of each worker of a cluster. Empty without one."""
        return []

    def speak(
        self,
        text: str,
        voice: Voice | None = None,
        params: SamplingParams | None = None,
        scene: str | None = None,
        listener: Listener | None = None,
        retakes: Mapping[int, int] = MappingProxyType({}),
    ) -> SpeechResult:
        """Speak `text`; the engine must be open.

        Long text is split at sentence ends into sequences that decode together. Without a voice, the first one is
        spoken alone and becomes the voice of the rest. `scene` is v2's scene description. retakes: sentence, from 0 ->
        how often it is taken again with another seed, while all else stays; a warning names sentences that do not
        exist. Raises HiggsError if the text is empty, a prompt does not fit the context, the voice is of another
        codec, or the engine is closed meanwhile.
        """
        voices = {} if voice is None else {"": voice}
        given = SpeechInput((Turn("", text),), voices, params or SamplingParams(), scene, None, bool(retakes), retakes)
        return self._speak(given, listener, True)

    def speak_turns(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice] = MappingProxyType({}),
        params: SamplingParams | None = None,
        scene: str | None = None,
        listener: Listener | None = None,
        reuse: bool | SequenceStore = True,
        even: bool = True,
        retakes: Mapping[int, int] = MappingProxyType({}),
    ) -> SpeechResult:
        """Speak a dialogue, all turns together. Other arguments are those of `speak`.

        Args:
            voices: by speaker. Speakers without one get a voice from seed and name: their first words become the
                voice of the rest.
            reuse: take repeated sequences from this engine's host cache, or from a caller's store. The store receives
                every sequence once it is spoken.
            even: equalise the loudness of the result's turns, before their volume settings. A listener gets them as
                spoken.

        Raises:
            HiggsError: as `speak` does, and if no turn has words.
        """
        kept = None if isinstance(reuse, bool) else reuse
        given = SpeechInput(
            turns, voices, params or SamplingParams(), scene, kept, True, retakes, is_dialogue=True, even=even
        )
        return self._speak(given, listener, reuse is True)

    def heads(self) -> tuple[Head, ...]:
        """Return the attention heads that `words` uses. Empty if there are none."""
        return ()

    def words(self, speech: SpeechResult) -> tuple[Word, ...]:
        """Return when each word of this engine's speech is heard, in order. Not part of `speak`: it takes time.

        By the talker's attention, if it has aligning heads; else by Whisper's, if one is configured; else, or if the
        engine is closed or short of memory, estimated.
        """
        return mark_words((word for chunk in speech.said for word in estimate(speech.wav, chunk)), speech.said)

    @torch.inference_mode()
    def _speak(self, given: SpeechInput, listener: Listener | None, is_cached: bool) -> SpeechResult:
        """Speak. is_cached: with the planner's own cache of codes."""
        listener = listener or Listener()
        with self.decoding(lambda: listener.on_frame and listener.on_frame(0, 1)) as decoder:
            planner = self.planner  # servers are found by now
            given = replace(given, kept=planner.kept) if is_cached else given
            with planner.request(given, listener) as request:
                speech = speak(request, decoder)
        return planner.with_warnings(speech, given.turns)

    @abstractmethod
    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """Encode a reference clip [S] or [C, S] as a voice. Waits for running speech.

        Raises HiggsError if the clip is silent, not finite, under 1 s or over 30 s.
        """

    @abstractmethod
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> AbstractContextManager[Decoder]:
        """Return a context manager that gives one thread the decoder.

        on_wait() is called while waiting, and may raise. Raises HiggsError if nothing is open.
        """
