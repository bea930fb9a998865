"""What an engine has for who wants speech, and several engines together have as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import NamedTuple

import torch

from .config import SamplingParams
from .decode.kept_codes import KeptCodes, SequenceStore
from .prompt.script import Turn
from .relay import SoundMaker
from .request import DialogueOptions, Listener, SpeechRequest
from .result import SpeechResult
from .voice.voice import Voice

OnFrame = Callable[[int, int], None]


class Speaking(NamedTuple):
    """What one call of speak is served by: who makes the sound, who is told of progress, and who decodes."""

    maker: SoundMaker
    on_frame: OnFrame
    decode: Callable[[SpeechRequest], SpeechResult]


class SpeechInterface(ABC):
    """`speak` and `speak_turns`."""

    kept: KeptCodes

    @property
    def devices(self) -> int:
        """How many speak together."""
        return 1

    def speak(
        self,
        text: str,
        voice: Voice | None = None,
        params: SamplingParams | None = None,
        scene: str | None = None,
        on_frame: Callable[[int, int], None] | None = None,
        on_audio: Callable[[torch.Tensor], None] | None = None,
        on_restart: Callable[[str], None] | None = None,
    ) -> SpeechResult:
        """Says `text`; the engine must be open.

        Long text is split at sentence ends into sequences that decode together; without a voice the first one is spoken
        alone and is the voice of the rest. `scene` is v2's description of the recording. `on_frame(done, expected)` is
        called after every step and may raise to cancel; the engine stays usable. `on_audio(wav)` gets the sound
        [n] float32, on the host and in order, as soon as it is final: of the first sequence while it is spoken, of
        others once nothing is wrong with them. `on_restart(why)`: the first came out badly, and all sound so far is
        void; without it, that one is not spoken again. Raises HiggsError for empty text, a prompt that does not fit the
        context, for a voice of another codec, and when the engine is closed meanwhile.
        """
        voices = {} if voice is None else {"": voice}
        return self._say((Turn("", text),), voices, params, scene, (on_frame, on_audio, on_restart), None)

    def speak_turns(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice] = MappingProxyType({}),
        params: SamplingParams | None = None,
        scene: str | None = None,
        on_frame: Callable[[int, int], None] | None = None,
        on_audio: Callable[[torch.Tensor], None] | None = None,
        on_restart: Callable[[str], None] | None = None,
        reuse: bool | SequenceStore = True,
        even: bool = True,
    ) -> SpeechResult:
        """Says a dialogue, all of its turns together; see `speak` for what both have.

        voices: by speaker. One without gets its own from seed and name: its first words are the voice of the rest.
        reuse: what this engine has said before comes from its codes, which stay on the host, or a caller's store has
        it, which gets every sequence once it is spoken. even: the result's turns are equally loud, but for settings;
        on_audio gets them as they are spoken. Raises HiggsError as `speak` does, and where no turn has a word.
        """
        kept = self.kept if reuse is True else None if reuse is False else reuse
        dialogue = DialogueOptions(kept, even)
        return self._say(turns, voices, params, scene, (on_frame, on_audio, on_restart), dialogue)

    @torch.inference_mode()
    def _say(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        callbacks: tuple[Callable | None, Callable | None, Callable | None],
        dialogue: DialogueOptions | None,
    ) -> SpeechResult:
        on_frame, on_audio, on_restart = callbacks
        with self.speaking(on_frame) as (maker, tick, decode):
            listener = Listener(tick, on_audio, on_restart)
            with self.request(maker, turns, voices, params, scene, listener, dialogue) as request:
                speech = decode(request)
        return self.with_warnings(speech, turns)

    @abstractmethod
    def knows_tag(self, tag: str) -> bool:
        """Whether the checkpoint follows a control tag, as far as its files say."""

    @abstractmethod
    def speaking(self, on_frame: OnFrame | None) -> AbstractContextManager[Speaking]:
        """For the length of a call. Raises HiggsError when nothing is open."""

    @abstractmethod
    def request(
        self,
        waveform: SoundMaker,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ) -> SpeechRequest:
        """What is to be said. Raises HiggsError for a voice of another codec."""

    @abstractmethod
    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        """The result with what the checkpoint's card and adapters have to say."""
