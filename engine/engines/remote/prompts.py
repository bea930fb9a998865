"""Prompts for servers, which tokenize the text themselves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from ...core.config import FRAME_SAMPLES, SamplingParams
from ...core.sequence import Sequence
from ...prompt.card import ModelCard
from ...prompt.chunking import estimate_frames
from ...prompt.lengths import bounds_of
from ...prompt.sequences import Prompts
from ...prompt.tags import TAGS, TextGuard, after_first_word
from ...voice.voice import Voice

CONTEXT = 1 << 20  # positions; a server's context is unknown, so this never limits
NAMED = "server"  # codec of a voice that a server knows by name


@dataclass(eq=False)
class RemoteSequence(Sequence):
    """A chunk for a server. Its ids are only a digest, and its codes are PCM frames, see pcm.py."""

    content: str = ""  # text without words the model would read as commands
    transcript: str = ""


def named_voice(name: str) -> Voice:
    return Voice(torch.zeros(1, FRAME_SAMPLES, dtype=torch.int64), None, name, NAMED)


class RemotePrompts(Prompts):
    """Prompt builder for servers. Cleans text as PromptBuilder does for a model with all control tags.

    without_scene: names of the servers that do not support scenes, for users; if set, the scene is dropped for all.
    card: what the servers' model has learned, as far as it is planned here.
    """

    def __init__(self, without_scene: str = "", card: ModelCard = ModelCard()):  # noqa: B008 - it is immutable
        super().__init__(TextGuard(TAGS, False, "the server's model"), card)
        self._without_scene = without_scene

    def build(
        self, text: str, voice: Voice | None, scene: str | None, *, params: SamplingParams, index: int
    ) -> RemoteSequence:
        warnings: list[str] = []
        content = self._content(text, warnings.append)
        spoken = self.spell_out(text).text
        if (scene or "").strip() and self._without_scene:
            scene = None
            warnings.append(f"{self._without_scene} does not use scene descriptions, so scene was left out.")
        transcript, audio, name = "", (), ""
        if voice is not None:
            content = after_first_word(content)
            transcript = self._guard.clean(voice.transcript or "", warnings.append)
            audio, name = ((0, voice.codes),), voice.name if voice.codec == NAMED else ""
        digested = repr((content, transcript, scene, name))
        ids = list(hashlib.sha256(digested.encode()).digest())
        return RemoteSequence(
            ids,
            audio,
            tuple(dict.fromkeys(warnings)),
            text=text,
            spoken_text=spoken,
            voice=voice,
            scene=scene,
            params=params,
            index=index,
            expected=estimate_frames(spoken),
            bounds=bounds_of(spoken),
            content=content,
            transcript=transcript,
        )

    def measure(self, text: str, voice: Voice | None, scene: str | None, is_rough: bool = False) -> tuple[int, int]:
        """Return (1, 0), because the prompt's length on a server is unknown. Raises as `build` does."""
        self._content(text, lambda warning: None)
        return 1, 0
