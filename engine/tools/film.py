"""The voices of a film's speakers, for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection

import numpy as np
import torch

from ..config import SAMPLE_RATE
from ..dubbing.references import cut_references
from ..engine import Engine
from ..prompt.cues import CueSheet
from ..voice.voice import Voice


def film_voices(
    engine: Engine, sheet: CueSheet, film: tuple[np.ndarray, int], speakers: Collection[str], translated: bool
) -> dict[str, Voice]:
    """Of those of the speakers who can be heard clearly; of the others it warns. film: ([C, n], Hz)."""
    clips = cut_references(sheet.cues, torch.from_numpy(film[0]), film[1], speakers)
    for speaker in speakers:
        if speaker not in clips:
            print(f"warning: {speaker or 'Who has no name'} cannot be heard clearly in the film", file=sys.stderr)
    return {
        speaker: engine.encode_voice(clip.wav, SAMPLE_RATE, None if translated else clip.transcript, speaker)
        for speaker, clip in clips.items()
    }
