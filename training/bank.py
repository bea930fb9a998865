"""Speech in the device's memory, to draw a training batch from: by itself, or beside its codes. Knows no network."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.config import FRAME_SAMPLES

from .encode import codes_of, whole_frames
from .synthesise import load_shards


class Bank:
    """All speech of a folder of shards."""

    def __init__(self, folder: Path, device: str):
        self.samples = load_shards([folder])[0].to(device)

    def draw(self, batch: int, length: int) -> torch.Tensor:
        """[batch, 1, length], half of them made softer or louder."""
        device = self.samples.device
        starts = torch.randint(len(self.samples) - length, (batch, 1), device=device)
        wav = self.samples[starts + torch.arange(length, device=device)].float() / 32768
        decibels = torch.empty(batch, 1, device=device).uniform_(-10, 4)
        gain = torch.where(torch.rand(batch, 1, device=device) < 0.5, 10 ** (decibels / 20), 1.0)
        return (wav * gain).clamp(-1, 1)[:, None]


class CodedBank:
    """The same speech in whole frames, each utterance beside the codes that it has by itself.

    `share` of what is drawn begins in an utterance of the speaker `focus`, the rest anywhere.
    """

    def __init__(self, folder: Path, codec: Path, device: str, focus: str, share: float):
        samples, utterances = load_shards([folder])
        samples = samples.to(device)
        precise = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        codes = codes_of(samples, utterances, codec)
        torch.backends.cudnn.allow_tf32 = precise
        self.codes = torch.cat(codes).to(device)  # [F, 8]
        self.frames = torch.cat([whole_frames(samples, one) for one in utterances]).view(-1, FRAME_SAMPLES)
        counts = torch.tensor([len(found) for found in codes])
        focused = torch.tensor([one.speaker == focus for one in utterances]).repeat_interleave(counts)
        self.focus, self.share = focused.nonzero()[:, 0].to(device), share
        assert len(self.focus) or not share, f"{focus} does not speak in {folder}"

    @property
    def samples(self) -> torch.Tensor:
        return self.frames.view(-1)

    def draw(self, batch: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(codes int64 [batch, frames, 8], wav [batch, 1, 960 * frames])"""
        device, last = self.codes.device, len(self.codes) - frames
        starts = torch.randint(last, (batch,), device=device)
        if self.share:
            chosen = self.focus[torch.randint(len(self.focus), (batch,), device=device)].clamp_max(last)
            starts = torch.where(torch.rand(batch, device=device) < self.share, chosen, starts)
        places = starts[:, None] + torch.arange(frames, device=device)
        return self.codes[places].long(), self.frames[places].float().view(batch, 1, -1) / 32768
