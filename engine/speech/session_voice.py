"""Voice of text that is spoken sentence by sentence while it arrives."""

from __future__ import annotations

import torch

from ..prompt.speakers import LEAST_REFERENCE_FRAMES
from ..voice.voice import Voice, voice_of_speech
from .result import SpeechResult


class SessionVoice:
    """Voice of streamed text. Without a given one, its first 3 seconds of speech are the voice of the rest."""

    def __init__(self, given: Voice | None, most: int):
        self.current, self._is_given, self._most = given, given is not None, most
        self._spoken: list[SpeechResult] = []

    def hear(self, speech: SpeechResult) -> None:
        if self._is_given or not speech.frames or sum(one.frames for one in self._spoken) >= LEAST_REFERENCE_FRAMES:
            return
        self._spoken.append(speech)
        codes = torch.cat([one.codes for one in self._spoken])
        whole = all(one.complete for one in self._spoken) and len(codes) <= self._most
        text = " ".join(chunk.text for one in self._spoken for chunk in one.said)
        self.current = voice_of_speech(codes[: self._most], text if whole else None, "first sentence")
