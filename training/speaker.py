"""Speak many texts at once with Kokoro: phonemes in; trimmed, levelled 16-bit sound and symbol times out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.audio.resample import resample

from .kokoro import FRAME, Kokoro, compile_activations
from .kokoro_weights import read as read_weights
from .natural_voices import VOICES, Voices
from .phonemes import Reading
from .shards import SAMPLE_RATE, STEP

EDGES = (0.1, 0.25)  # seconds of silence kept before and after the speech
LOUDNESS = 0.08  # RMS of the louder half of a clip
PEAK = 0.95
_TOGETHER = 64  # texts of one length read at once
_ROUND = 8  # frames: lengths are rounded up to this with silence at the end
_FRAMES = 8_000  # spoken at once
_MOST_SYMBOLS = 500


@dataclass(frozen=True)
class Job:
    """One text by one speaker. speed: times the usual one."""

    reading: Reading
    speaker: str
    speed: float = 1.0


@dataclass(frozen=True)
class Sound:
    """Sound and its timing.

    samples: int16 [S] at 24 kHz; words: the second at which each word begins; symbols: uint8, the symbol of the
    network's alphabet heard in each begun hundredth of a second, 0 for none.
    """

    samples: np.ndarray
    words: tuple[float, ...]
    symbols: np.ndarray


@dataclass
class _Read:
    number: int
    told: torch.Tensor  # [N, 512]
    prosody: torch.Tensor  # [N, 640]
    frames: torch.Tensor  # [N]
    begins: np.ndarray  # frame at which each word begins
    ids: np.ndarray  # [N]
    ends: np.ndarray  # [N], the frame at which each id ends
    length: int  # frames


class Speaker:
    """The network with its voices on one device."""

    def __init__(self, model: Path, vocab: Path, voices: Voices, device: str):
        self.device, self.voices = torch.device(device), voices
        self.vocab = json.loads(vocab.read_text(encoding="utf-8"))["vocab"]
        network = Kokoro().eval()
        network.load_state_dict(read_weights(model), strict=False)
        self.network = network.to(self.device).requires_grad_(False)
        if self.device.type == "cuda":
            self.network.decoder.to_half()
            compile_activations()
        self.place = {name: i for i, name in enumerate(voices.names)}
        self.table = voices.table.to(self.device)

    def say(self, jobs: list[Job]) -> Iterator[tuple[int, Sound]]:
        """Yield (number of the job, its sound) in any order. A text without a symbol is left out."""
        read = [one for group in self._groups(jobs) for one in self._read(jobs, group)]
        read.sort(key=lambda one: one.length)
        for length, same in itertools.groupby(read, key=lambda one: one.length):
            held = sorted(same, key=lambda one: VOICES[jobs[one.number].speaker].warp)  # resampled together
            most = max(1, _FRAMES // length)
            for start in range(0, len(held), most):
                yield from self._say(jobs, held[start : start + most], length)

    def _ids(self, job: Job) -> list[int]:
        return [self.vocab[symbol] for symbol in job.reading.phonemes if symbol in self.vocab][:_MOST_SYMBOLS]

    def _groups(self, jobs: list[Job]) -> Iterable[list[tuple[int, list[int]]]]:
        """Yield (number, ids) of jobs of one length, as many as fit a batch."""
        rows = sorted(((i, self._ids(job)) for i, job in enumerate(jobs)), key=lambda row: len(row[1]))
        for length, same in itertools.groupby(rows, key=lambda row: len(row[1])):
            held = list(same)
            for start in range(0, len(held) if length else 0, _TOGETHER):
                yield held[start : start + _TOGETHER]

    def _voice(self, jobs: list[Job], symbols: list[int]) -> torch.Tensor:
        return self.table[[self.place[job.speaker] for job in jobs], [count - 1 for count in symbols]]

    def _read(self, jobs: list[Job], group: list[tuple[int, list[int]]]) -> Iterator[_Read]:
        chosen = [jobs[number] for number, _ in group]
        ids = torch.tensor([[0, *row, 0] for _, row in group], device=self.device)
        rates = self.voices.rate[[self.place[job.speaker] for job in chosen]]
        speed = torch.tensor([job.speed for job in chosen]) * rates
        voice = self._voice(chosen, [len(row) for _, row in group])
        told, prosody, frames = self.network.read(ids, voice, speed.to(self.device))
        total = frames.sum(1)
        frames[:, -1] += -total % _ROUND
        counts, lengths = frames.cpu().numpy(), frames.sum(1).tolist()
        for row, (number, _) in enumerate(group):
            reading = jobs[number].reading
            kept = np.cumsum([0, *(symbol in self.vocab for symbol in reading.phonemes)])
            tokens = np.minimum(kept[list(reading.words)] + 1, counts.shape[1] - 1)
            ends = np.cumsum(counts[row])
            begins = (ends - counts[row])[tokens]
            said = np.array([0, *group[row][1], 0], np.uint8)
            yield _Read(number, told[row], prosody[row], frames[row], begins, said, ends, lengths[row])

    def _say(self, jobs: list[Job], group: list[_Read], length: int) -> Iterator[tuple[int, Sound]]:
        chosen = [jobs[one.number] for one in group]
        told, prosody = (
            torch.stack([getattr(one, name).repeat_interleave(one.frames, 0, output_size=length) for one in group])
            for name in ("told", "prosody")
        )
        pitch = self.voices.pitch[[self.place[job.speaker] for job in chosen]].to(self.device)
        voice = self._voice(chosen, [len(self._ids(job)) for job in chosen])
        wav = self.network.say(told, prosody, voice, pitch)
        warps = [VOICES[job.speaker].warp for job in chosen]
        for warp in set(warps):
            rows = [i for i, found in enumerate(warps) if found == warp]
            played = round(SAMPLE_RATE * warp / 100) * 100  # played faster: higher, with a shorter vocal tract
            made = resample(wav[rows], played, SAMPLE_RATE)
            starts, stops, made = _trimmed(made)
            for i, start, stop, sound in zip(rows, starts, stops, made, strict=True):
                words = group[i].begins * FRAME / played - start / SAMPLE_RATE
                middles = start / SAMPLE_RATE + (np.arange(-(-(stop - start) // STEP)) + 0.5) * STEP / SAMPLE_RATE
                heard = np.searchsorted(group[i].ends * FRAME / played, middles, side="right")
                symbols = group[i].ids[np.minimum(heard, len(group[i].ids) - 1)]
                yield group[i].number, Sound(sound[start:stop], tuple(np.maximum(words, 0.0).tolist()), symbols)


def _trimmed(wav: torch.Tensor) -> tuple[list[int], list[int], np.ndarray]:
    """wav [B, S] -> start and end of each row's speech, including its edges, and int16 [B, S] levelled."""
    loudness = wav[:, : wav.shape[1] // STEP * STEP].unflatten(1, (-1, STEP)).square().mean(2).sqrt()
    loud = loudness > 0.01 * wav.abs().amax(1, keepdim=True).clamp_min(1e-6)
    count = loud.shape[1]
    first = loud.int().argmax(1) * STEP - round(EDGES[0] * SAMPLE_RATE)
    last = (count - loud.flip(1).int().argmax(1)) * STEP + round(EDGES[1] * SAMPLE_RATE)
    best = loudness.topk(max(1, count // 2), 1).values
    size = best.square().mean(1).sqrt().clamp_min(1e-5)
    gain = torch.minimum(LOUDNESS / size, PEAK / wav.abs().amax(1).clamp_min(1e-5))
    samples = (wav * gain[:, None] * 32767).round().clamp(-32768, 32767).to(torch.int16)
    return first.clamp_min(0).tolist(), last.clamp_max(wav.shape[1]).tolist(), samples.cpu().numpy()
