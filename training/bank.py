"""Speech in device memory, from which training batches are drawn, with heard symbols or with codes."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from engine.core.config import FRAME_SAMPLES

from .encode import codes_of, whole_frames
from .shards import STEP, Utterance, load_shards


def load_symbols(folder: Path, samples: int) -> torch.Tensor | None:
    """Return the symbol heard in each STEP of all shards of a folder, as uint8. None unless every shard has symbols."""
    told = [path.with_suffix(".sym") for path in sorted(folder.glob("*.json"))]
    heard = b"".join(path.read_bytes() for path in told if path.is_file())
    return torch.frombuffer(bytearray(heard), dtype=torch.uint8) if len(heard) * STEP == samples else None


class Bank:
    """All speech of a folder of shards. symbols: heard in each STEP if all shards have them, else None."""

    def __init__(self, folder: Path, device: str):
        self.samples = load_shards([folder])[0].to(device)
        found = load_symbols(folder, len(self.samples))
        self.symbols = None if found is None else found.to(device)

    def draw(self, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw (wav [batch, 1, length], symbols [batch, length / 960] in the middle of each frame).

        Half of the excerpts are made softer or louder. Unknown symbols are 0.
        """
        device = self.samples.device
        starts = torch.randint(len(self.samples) - length, (batch, 1), device=device)
        wav = self.samples[starts + torch.arange(length, device=device)].float() / 32768
        decibels = torch.empty(batch, 1, device=device).uniform_(-10, 4)
        gain = torch.where(torch.rand(batch, 1, device=device) < 0.5, 10 ** (decibels / 20), 1.0)
        middles = starts + torch.arange(FRAME_SAMPLES // 2, length, FRAME_SAMPLES, device=device)
        heard = torch.zeros_like(middles) if self.symbols is None else self.symbols[middles // STEP].long()
        return (wav * gain).clamp(-1, 1)[:, None], heard


class CodedBank:
    """The same speech in whole frames, with the codes each utterance has on its own.

    `share` of the excerpts begins in an utterance of the speaker `focus`, the rest anywhere.
    """

    def __init__(self, folder: Path, codec: Path, device: str, focus: str, share: float):
        samples, utterances = load_shards([folder])
        samples = samples.to(device)
        # not run on a GPU yet: with benchmark on, every new length was searched for its best kernels, 160 s in all
        precise, search = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
        codes = codes_of(samples, utterances, codec)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = precise, search
        self.codes = torch.cat(codes).to(device)  # [F, 8]
        self.frames = torch.cat([whole_frames(samples, one) for one in utterances]).view(-1, FRAME_SAMPLES)
        counts = torch.tensor([len(found) for found in codes])
        found = load_symbols(folder, len(samples))
        said = [] if found is None else [_said(found, one, len(codes[i])) for i, one in enumerate(utterances)]
        self.symbols = torch.cat(said).to(device) if said else None  # [F], in the middle of each frame
        focused = torch.tensor([one.speaker == focus for one in utterances]).repeat_interleave(counts)
        self.focus, self.share = focused.nonzero()[:, 0].to(device), share
        assert len(self.focus) or not share, f"{focus} does not speak in {folder}"

    @property
    def samples(self) -> torch.Tensor:
        return self.frames.view(-1)

    def draw(self, batch: int, frames: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw (codes int64 [batch, frames, 8], wav [batch, 1, 960 * frames], symbols as in `Bank.draw`)."""
        device, last = self.codes.device, len(self.codes) - frames
        starts = torch.randint(last, (batch,), device=device)
        if self.share:
            chosen = self.focus[torch.randint(len(self.focus), (batch,), device=device)].clamp_max(last)
            starts = torch.where(torch.rand(batch, device=device) < self.share, chosen, starts)
        places = starts[:, None] + torch.arange(frames, device=device)
        said = torch.zeros_like(places) if self.symbols is None else self.symbols[places].long()
        return self.codes[places].long(), self.frames[places].float().view(batch, 1, -1) / 32768, said


def _said(symbols: torch.Tensor, one: Utterance, frames: int) -> torch.Tensor:
    """Return the symbol in the middle of each frame of an utterance."""
    own = symbols[one.start // STEP : (one.start + one.samples) // STEP]
    each = FRAME_SAMPLES // STEP
    return F.pad(own, (0, each))[each // 2 :: each][:frames]
