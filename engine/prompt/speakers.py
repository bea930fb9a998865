"""Voices by speaker. Without a given voice, a speaker's first words become the voice of the rest."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace

import torch

from ..core.config import FRAME_RATE, SamplingParams
from ..core.sequence import Sequence
from ..voice.clip import MAX_CLIP_SECONDS
from ..voice.voice import Voice, voice_of_speech
from .plan import Chunk

_SELF_REFERENCE_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)
LEAST_REFERENCE_FRAMES = 3 * FRAME_RATE  # minimum for a generated voice, if turns or pauses cut it short
_SEEDS = 1 << 64


def most_reference_frames(context: int) -> int:
    """Return the maximum frames of a generated voice, which takes at most a third of the model's positions."""
    return min(_SELF_REFERENCE_FRAMES, context // 3)


class Speakers:
    """Voices of a request: given ones, and those generated from speech.

    context: positions of the model.
    """

    def __init__(self, given: Mapping[str, Voice], context: int):
        self.given, self.voices = given, dict(given)
        self._most = most_reference_frames(context)

    def params_of(self, chunk: Chunk) -> SamplingParams:
        """Return a chunk's parameters. A named speaker without a voice gets its own seed, and so its own voice."""
        if chunk.speaker in self.voices or not chunk.speaker:
            return chunk.params
        return replace(chunk.params, seed=(chunk.params.seed + zlib.crc32(chunk.speaker.encode())) % _SEEDS)

    def reference_places(self, chunks: Ordered[Chunk], spoken: Ordered[Sequence | None]) -> list[int]:
        """Return the next chunk of every speaker whose later chunks still need a voice.

        This is its first chunk, and also the next if a pause or the turn's end makes that one short.
        """
        places: list[int] = []
        places_of: dict[str, list[int]] = {}
        for place, chunk in enumerate(chunks):
            places_of.setdefault(chunk.speaker, []).append(place)
        for speaker, own in places_of.items():
            if speaker in self.given:
                continue
            finished = [sequence for place in own if (sequence := spoken[place]) is not None]
            if len(finished) == len(own) or len(own) == 1:
                continue
            short = sum(sequence.num_frames for sequence in finished) < LEAST_REFERENCE_FRAMES
            if not finished or (short and chunks[own[len(finished)]].silence is not None):
                places.append(own[len(finished)])
        return places

    def refer(self, speaker: str, chunks: Ordered[Chunk], spoken: Ordered[Sequence | None]) -> None:
        """Make the speaker's voice from its speech so far, with a transcript only if that speech is complete."""
        own = [
            (chunk.text, sequence)
            for chunk, sequence in zip(chunks, spoken, strict=True)
            if chunk.speaker == speaker and sequence is not None
        ]
        codes = torch.cat([part for _, sequence in own for part in sequence.codes])
        if not len(codes):
            return
        whole = all(sequence.ended for _, sequence in own) and len(codes) <= self._most
        transcript = " ".join(text for text, _ in own) if whole else None
        self.voices[speaker] = voice_of_speech(codes[: self._most], transcript, "first chunk")
