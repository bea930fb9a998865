"""Voices by speaker. The first words of a speaker without a voice become the voice of the rest."""

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
_LEAST_REFERENCE_FRAMES = 3 * FRAME_RATE  # of a speaker's first chunks, where turns or pauses make them short
_SEEDS = 1 << 64


class Speakers:
    """The voices of a request: those that were given, and those that speakers have got since.

    context: positions of the model's; a voice made of speech leaves room for others' text in them.
    """

    def __init__(self, given: Mapping[str, Voice], context: int):
        self.given, self.voices = given, dict(given)
        self._most = min(_SELF_REFERENCE_FRAMES, context // 3)  # of speech that ran on

    def params_of(self, chunk: Chunk) -> SamplingParams:
        """Those of a chunk; a speaker with a name and no voice has a seed, and so a voice, of its own."""
        if chunk.speaker in self.voices or not chunk.speaker:
            return chunk.params
        return replace(chunk.params, seed=(chunk.params.seed + zlib.crc32(chunk.speaker.encode())) % _SEEDS)

    def reference_places(self, chunks: Ordered[Chunk], spoken: Ordered[Sequence | None]) -> list[int]:
        """The next chunk of every speaker that still needs a voice for what comes later.

        That is its first one; where a pause or its turn's end makes that short, also the next.
        """
        places: list[int] = []
        places_of: dict[str, list[int]] = {}
        for place, chunk in enumerate(chunks):
            places_of.setdefault(chunk.speaker, []).append(place)
        for speaker, own in places_of.items():
            if speaker in self.given:
                continue
            said = [sequence for place in own if (sequence := spoken[place]) is not None]
            if len(said) == len(own) or len(own) == 1:
                continue
            short = sum(sequence.num_frames for sequence in said) < _LEAST_REFERENCE_FRAMES
            if not said or (short and chunks[own[len(said)]].silence is not None):
                places.append(own[len(said)])
        return places

    def refer(self, speaker: str, chunks: Ordered[Chunk], spoken: Ordered[Sequence | None]) -> None:
        """Make a speaker's words so far its voice, with a transcript only if all of them are heard."""
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
