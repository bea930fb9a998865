"""ComfyUI's AUDIO and the engine's clips, one into the other; the only file that spells the keys. Judges no sound."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping

import torch

from ...engine import SAMPLE_RATE, HiggsError, SpeechResult, resample, wav_bytes

_HEADER = 44  # bytes of a WAV file before its samples


def to_clip(audio: object, name: str = "audio") -> tuple[torch.Tensor, int]:
    """(wave [C, S], Hz) of an AUDIO. Raises HiggsError, with the input's name, where it is not exactly one clip."""
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
    """AUDIO of what the engine spoke: one clip, one channel."""
    return of_wave(speech.wav.detach().float().cpu()[None], SAMPLE_RATE)


def of_wave(wave: torch.Tensor, rate: int) -> dict:
    """AUDIO of a wave [C, S] at `rate` Hz."""
    return {"waveform": wave[None], "sample_rate": rate}


def for_player(wave: torch.Tensor, rate: int) -> torch.Tensor:
    """A wave [C, S] at `rate` Hz as the page plays it: [S] at SAMPLE_RATE."""
    return resample(wave.mean(0), rate, SAMPLE_RATE)


def at_most_stereo(wave: torch.Tensor) -> torch.Tensor:
    """A wave [C, S] as ComfyUI can save it, which takes whatever is not mono for stereo.

    5.1 and 7.1 sound, in the order of WAV files, becomes stereo as ITU-R BS.775 has it, scaled so that nothing clips;
    any other number of channels becomes one.
    """
    count = len(wave)
    if count not in (6, 8):
        return wave if count <= 2 else wave.mean(0, keepdim=True)
    centre, share = wave[2], 0.5**0.5
    sides = [wave[side] + share * (centre + wave[4 + side :: 2].sum(0)) for side in (0, 1)]
    return torch.stack(sides) / (1 + share * (1 + (count - 4) // 2))


def by_speaker(speech: SpeechResult, speakers: list[str]) -> dict:
    """AUDIO of a dialogue as a batch: a clip for each speaker, in that order, all as long as the dialogue."""
    wav = speech.wav.detach().float().cpu()
    clips = torch.zeros(len(speakers), 1, len(wav))
    for turn in speech.turns:
        span = slice(turn.start, turn.stop)
        clips[speakers.index(turn.speaker), 0, span] = wav[span]
    return {"waveform": clips, "sample_rate": SAMPLE_RATE}


def of_turns(speech: SpeechResult | None, numbers: Collection[int]) -> dict:
    """AUDIO of these turns, each with the silence behind it; of none of them a moment of silence."""
    if speech is None or not numbers:
        return of_wave(torch.zeros(1, SAMPLE_RATE // 10), SAMPLE_RATE)
    ends = [*(turn.start for turn in speech.turns[1:]), len(speech.wav)]
    parts = [speech.wav[turn.start : end] for turn, end in zip(speech.turns, ends, strict=True)]
    return of_wave(torch.cat([parts[number] for number in sorted(numbers)]).detach().float().cpu()[None], SAMPLE_RATE)


def wav_file(speech: SpeechResult, number: int) -> bytes:
    """One turn as a WAV file: 16 bits, one channel."""
    turn = speech.turns[number]
    return wav_bytes(speech.wav[turn.start : turn.stop].detach().float().cpu())


def seconds_of(size: int) -> float:
    """Of a file as `wav_file` makes it, by its size."""
    return max(0, size - _HEADER) / 2 / SAMPLE_RATE
