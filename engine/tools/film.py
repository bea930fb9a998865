"""A film's sound and its speakers' voices, for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch

from ..audio.packed import read_packed
from ..audio.resample import check_rate
from ..core.config import MOST_FILM_SECONDS, SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..dubbing.references import cut_references
from ..engines.speech_api import SpeechAPI
from ..files.whole_file import path_for_c
from ..prompt.cues import CueSheet
from ..voice.voice import Voice


def read_film(path: str) -> tuple[np.ndarray, int]:
    """Read (wav [C, n] float32, Hz) from a film or sound file, with PyAV if soundfile cannot.

    Raises HiggsError if the file has no sound.
    """
    if not Path(path).is_file():
        raise HiggsError(f"There is no film or sound file at {path}. Check the path.")
    samples = bytearray()  # interleaved float32; grows without a second copy, whatever the header claims
    try:
        with import_optional("soundfile", "SoundFile")(path_for_c(path)) as file:
            rate, channels = file.samplerate, file.channels
            while len(block := file.read(rate, dtype="float32")):
                samples += block.tobytes()
                _check_length(path, len(samples) / (4 * rate * channels))
        wav = np.frombuffer(samples, np.float32).reshape(-1, channels).T
    except (RuntimeError, TypeError):  # soundfile's own
        samples.clear()
        try:
            wav, rate = read_packed(Path(path), lambda rate, channels, seconds: _check_length(path, seconds))
        except RuntimeError as error:
            raise HiggsError(f"{path} cannot be read as audio ({error}). Choose a film or a sound file.") from error
    if not wav.size:
        raise HiggsError(f"{path} has no sound. Choose a film with sound, or a sound file.")
    check_rate(rate, path)
    return wav, rate


def _check_length(path: str, seconds: float) -> None:
    if seconds > MOST_FILM_SECONDS:
        hours = MOST_FILM_SECONDS / 3600
        raise HiggsError(f"{path} has more than {hours:g} hours of sound. Cut it into shorter films.")


def film_voices(
    engine: SpeechAPI, sheet: CueSheet, film: tuple[np.ndarray, int], speakers: Collection[str], translated: bool
) -> dict[str, Voice]:
    """Return voices of speakers heard clearly, and warn about the others. film: ([C, n], Hz)."""
    clips = cut_references(sheet.cues, torch.from_numpy(film[0]), film[1], speakers)
    for speaker in speakers:
        if speaker not in clips:
            print(
                f"warning: the film has no clear second of {speaker or 'the unnamed speaker'} speaking alone. "
                "Name a voice before the first cue, or use --voice for cues without a name.",
                file=sys.stderr,
            )
    return {
        speaker: engine.encode_voice(clip.wav, SAMPLE_RATE, None if translated else clip.transcript, speaker)
        for speaker, clip in clips.items()
    }
