"""Conversions between ComfyUI's AUDIO and the engine's clips. The only file that spells AUDIO's keys."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...engine import (
    SAMPLE_RATE,
    HiggsError,
    SpeechResult,
    Target,
    Word,
    clip_seconds,
    encode_sound,
    master,
    moved,
    resample,
    wav_bytes,
)

_HEADER = 44  # bytes of a WAV file's header


def to_clip(audio: object, name: str = "audio") -> tuple[torch.Tensor, int]:
    """Return (wave [C, S], Hz) of an AUDIO. Raises HiggsError, with the input's name, unless it is exactly one clip."""
    if audio is None:
        raise HiggsError(f"the {name} input is empty; the video may have no sound track. Connect an audio clip.")
    wave, rate = (audio.get(key) for key in ("waveform", "sample_rate")) if isinstance(audio, Mapping) else (None, None)
    if not isinstance(wave, torch.Tensor) or not isinstance(rate, (int, float)):
        raise HiggsError(f"the {name} input is {reprlib.repr(audio)}, not audio. Connect Load Audio.")
    if wave.dim() != 3 or wave.shape[0] != 1:
        raise HiggsError(
            f"the {name} input has the shape {list(wave.shape)}, but only one clip fits: [1, channels, samples]. "
            "Connect one clip."
        )
    return wave[0], int(rate)


def from_speech(speech: SpeechResult) -> dict:
    """Return the engine's speech as AUDIO: one clip, one channel."""
    return of_wave(speech.wav.detach().float().cpu()[None], SAMPLE_RATE)


def of_wave(wave: torch.Tensor, rate: int) -> dict:
    """Return a wave [C, S] at `rate` Hz as AUDIO."""
    return {"waveform": wave[None], "sample_rate": rate}


def for_player(wave: torch.Tensor, rate: int) -> torch.Tensor:
    """Convert a wave [C, S] at `rate` Hz for the page's player: [S] at SAMPLE_RATE."""
    return resample(wave.mean(0), rate, SAMPLE_RATE)


def at_most_stereo(wave: torch.Tensor) -> torch.Tensor:
    """Mix a wave [C, S] down to mono or stereo, since ComfyUI saves anything but mono as stereo.

    5.1 and 7.1 sound, in WAV channel order, is mixed to stereo as in ITU-R BS.775, scaled so that nothing clips. Any
    other number of channels is mixed to mono.
    """
    count = len(wave)
    if count not in (6, 8):
        return wave if count <= 2 else wave.mean(0, keepdim=True)
    centre, share = wave[2], 0.5**0.5
    sides = [wave[side] + share * (centre + wave[4 + side :: 2].sum(0)) for side in (0, 1)]
    return torch.stack(sides) / (1 + share * (1 + (count - 4) // 2))


def by_speaker(speech: SpeechResult, speakers: list[str]) -> dict:
    """Return a dialogue as a batched AUDIO: one clip per speaker, in order, each as long as the dialogue."""
    wav = speech.wav.detach().float().cpu()
    clips = torch.zeros(len(speakers), 1, len(wav))
    for turn in speech.turns:
        span = slice(turn.start, turn.stop)
        clips[speakers.index(turn.speaker), 0, span] = wav[span]
    return {"waveform": clips, "sample_rate": SAMPLE_RATE}


def of_turns(speech: SpeechResult | None, numbers: Collection[int]) -> dict:
    """Return the chosen turns as AUDIO, each followed by its silence. No turns give a moment of silence."""
    if speech is None or not numbers:
        return of_wave(torch.zeros(1, SAMPLE_RATE // 10), SAMPLE_RATE)
    parts = [speech.wav[start:end] for start, end in _spans(speech)]
    return of_wave(torch.cat([parts[number] for number in sorted(numbers)]).detach().float().cpu()[None], SAMPLE_RATE)


def words_of_turns(speech: SpeechResult, numbers: Collection[int], timed: Sequence[Sequence[Word]]) -> list[Word]:
    """Return the words of the chosen turns at their times in `of_turns`. timed: those of each turn, from its start."""
    words, at = [], 0
    spans = _spans(speech)
    for number in sorted(numbers) if timed else ():
        start, end = spans[number]
        words += moved(timed[number], at / SAMPLE_RATE)
        at += end - start
    return words


def _spans(speech: SpeechResult) -> list[tuple[int, int]]:
    """Return (start, stop) samples of each turn with the silence after it."""
    starts = [turn.start for turn in speech.turns]
    return list(zip(starts, [*starts[1:], len(speech.wav)], strict=True))


def turns_mastered(speech: SpeechResult, target: Target) -> SpeechResult:
    """Return speech with each of its turns at a loudness target."""
    wav = speech.wav.clone()
    for turn in speech.turns:
        span = slice(turn.start, turn.stop)
        wav[span] = master(wav[None, span], SAMPLE_RATE, target)[0][0]
    return replace(speech, wav=wav)


def turn_file(speech: SpeechResult, number: int, kind: str, tags: Mapping[str, str]) -> bytes:
    """Return one turn as a file of a kind in SOUND_FILES, mono. WAV files have no tags."""
    turn = speech.turns[number]
    wav = speech.wav[turn.start : turn.stop].detach().float().cpu()
    return wav_bytes(wav) if kind == "wav" else encode_sound(wav[None], SAMPLE_RATE, kind, tags)


def seconds_of(path: Path, size: int) -> float:
    """Return the length of a file from `turn_file`, given its size in bytes. 0 if it cannot be read."""
    if path.suffix == ".wav":
        return max(0, size - _HEADER) / 2 / SAMPLE_RATE
    with contextlib.suppress(HiggsError):
        return clip_seconds(path)
    return 0.0
