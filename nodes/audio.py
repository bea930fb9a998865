"""ComfyUI's AUDIO and the engine's clips, one into the other; the only file that spells the keys. Judges no sound."""

from __future__ import annotations

import torch

from ..engine import SAMPLE_RATE, HiggsError, SpeechResult


def to_clip(audio: dict | None) -> tuple[torch.Tensor, int]:
    """(wave [C, S], Hz) of an AUDIO. Raises HiggsError where it does not hold exactly one clip."""
    if audio is None:
        raise HiggsError("the audio input is empty (a video without a sound track, perhaps). Connect a sound clip.")
    wave, rate = audio["waveform"], audio["sample_rate"]
    if wave.dim() != 3 or wave.shape[0] != 1:
        raise HiggsError(
            f"the audio input has the shape {list(wave.shape)}. Connect one clip at a time: [1, channels, samples]."
        )
    return wave[0], int(rate)


def from_speech(speech: SpeechResult) -> dict:
    """AUDIO of what the engine spoke: one clip, one channel."""
    return {"waveform": speech.wav.detach().float().cpu()[None, None], "sample_rate": SAMPLE_RATE}


def by_speaker(speech: SpeechResult, speakers: list[str]) -> dict:
    """AUDIO of a dialogue with a channel for each speaker, in that order."""
    wav = speech.wav.detach().float().cpu()
    channels = torch.zeros(len(speakers), len(wav))
    for turn in speech.turns:
        span = slice(turn.start, turn.stop)
        channels[speakers.index(turn.speaker), span] = wav[span]
    return {"waveform": channels[None], "sample_rate": SAMPLE_RATE}
