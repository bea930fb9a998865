"""A run of the codec's training: its settings, losses and steps, and what it keeps."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from engine.codec.modules import CODEBOOKS
from engine.core.config import FRAME_SAMPLES

from .bank import Bank, CodedBank
from .codec_model import Codec, load, save
from .critics import Critics, SpectralLoss, codec_losses, critic_loss
from .listener import Listener, Reader, distance, misheard, wrong
from .natural_voices import DEFAULT
from .repeated import Repeated

WEIGHTS = {"mel": 15.0, "magnitude": 2.0, "commitment": 2.0, "verdict": 0.3}  # the others weigh 1
JUDGED_STEPS = 1000  # of the critics, until their loss counts in full
UNQUANTISED_STEPS = 300  # before the codebooks begin
WARM_STEPS = 200
LISTENER_STEPS = 500, 1500  # start of the listener's loss, and of its full weight: it has to learn first


@dataclass
class Settings:
    """One run. `minutes` counts from the first start of the training, also after resuming."""

    data: Path
    out: Path
    minutes: float = 10.0
    batch: int = 32
    frames: int = 32  # of a training excerpt
    rate: float = 6e-4
    critic_rate: float = 3e-4
    critic_frames: int = 12  # of an excerpt's middle, seen by the critics
    critic_share: float = 0.4  # of the time, before the critics begin
    listened: float = 0.5  # size of the listener's gradient at the waveform, relative to the spectral losses'
    judged: float = 0.5  # of the critics' gradient
    snapshots: float = 0.0  # minutes between permanent copies of the codec
    until: float = 0.0  # seconds since 1970 at which all ends: `minutes` are then the time left
    seed: int = 0
    fixed_codes: bool = False  # trains the decoder alone, from codes: a talker trained on them stays valid
    focus: float = 0.6  # with fixed codes: share of the default voice, which is `voice`, in a batch
    voice: str = DEFAULT
    log_seconds: float = 10.0
    save_seconds: float = 90.0
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Run:
    """The trained modules and the progress."""

    settings: Settings
    bank: Bank | CodedBank
    codec: Codec
    critics: Critics
    spectral: SpectralLoss
    listener: Listener
    reader: Reader
    before: float = 0.0  # minutes of earlier runs
    steps: int = 0
    begin: float = field(default_factory=time.time)
    losses: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        device, self.first = self.settings.device, self.steps  # step at which these optimisers begin
        graphed = device.startswith("cuda")
        self.real = torch.zeros(self.settings.batch, 1, self.settings.frames * FRAME_SAMPLES, device=device)
        self.codes = torch.zeros(self.settings.batch, self.settings.frames, CODEBOOKS, dtype=torch.int64, device=device)
        self.said = torch.zeros(self.settings.batch, self.settings.frames, dtype=torch.int64, device=device)
        self.listened = torch.zeros((), device=device)
        self.judged = torch.zeros((), device=device)
        self.listens = self.bank.symbols is not None
        self.revive = torch.ones((), dtype=torch.bool, device=device)
        rest = {"betas": (0.8, 0.99), "weight_decay": 0.0, "fused": graphed, "capturable": graphed}
        rates = [torch.zeros((), device=device) for _ in range(3)]
        if self.settings.fixed_codes:
            self.codec.fix_codes()
        learning = [one for one in self.codec.parameters() if one.requires_grad]
        self.teach_codec = torch.optim.AdamW([*learning, *self.reader.parameters()], lr=rates[0], **rest)
        self.teach_listener = torch.optim.AdamW(self.listener.parameters(), lr=rates[2], **rest)
        self.teach_critics = torch.optim.AdamW(self.critics.parameters(), lr=rates[1], **rest)
        self.works = {
            "unquantised": Repeated(lambda: self.learn(quantised=False, judged=False)),
            "quantised": Repeated(lambda: self.learn(quantised=True, judged=False)),
            "judged": Repeated(lambda: self.learn(quantised=True, judged=True)),
        }

    @property
    def judges(self) -> dict[str, nn.Module]:
        return {"critics": self.critics, "listener": self.listener, "reader": self.reader}

    @property
    def minutes(self) -> float:
        return self.before + (time.time() - self.begin) / 60

    @property
    def progress(self) -> float:
        return min(1.0, self.minutes / self.settings.minutes)

    def set_rates(self) -> None:
        fall = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.progress))
        warm = min(1.0, (self.steps - self.first + 1) / WARM_STEPS)
        self.teach_codec.param_groups[0]["lr"].fill_(self.settings.rate * fall * warm)
        self.teach_critics.param_groups[0]["lr"].fill_(self.settings.critic_rate)
        self.teach_listener.param_groups[0]["lr"].fill_(self.settings.rate * fall * warm)
        learned = (self.steps - LISTENER_STEPS[0]) / (LISTENER_STEPS[1] - LISTENER_STEPS[0])
        self.listened.fill_(self.settings.listened * min(1.0, max(0.0, learned)))
        self.judged.fill_(self.settings.judged * min(1.0, self.works["judged"].calls / JUDGED_STEPS))

    def step(self) -> None:
        """Train on one batch, including the critics once they have begun."""
        self.set_rates()
        if self.settings.fixed_codes:
            codes, wav, said = self.bank.draw(*self.codes.shape[:2])
            self.codes.copy_(codes)
        else:
            wav, said = self.bank.draw(*self.real.shape[::2])
        self.real.copy_(wav)
        self.said.copy_(said)
        self.revive.fill_(self.progress < 0.8)
        if self.steps == UNQUANTISED_STEPS and not self.settings.fixed_codes:
            with torch.no_grad():
                self.codec.begin_books(self.bank.draw(20 * len(self.real), self.real.shape[2])[0], len(self.real))
        judged = "judged" if self.progress >= self.settings.critic_share else "quantised"
        self.works["unquantised" if self.steps < UNQUANTISED_STEPS else judged](self.settings.device)
        self.steps += 1

    def learn(self, quantised: bool, judged: bool) -> None:
        """Run the GPU part of a step, with fixed places for inputs and outputs."""
        losses = {}
        if self.settings.fixed_codes:
            made = self.codec.decode(self.codes)
        else:
            made, telling, losses["commitment"] = self.codec(self.real, self.revive if quantised else None)
            if self.listens:
                told = self.reader(telling.transpose(1, 2))
                losses |= {"told": misheard(told, self.said), "told wrong": wrong(told, self.said)}
        heard, real = made.detach()[:, 0].requires_grad_(), self.real[:, 0]
        losses["mel"], losses["magnitude"] = self.spectral(heard, real)
        (wanted,) = torch.autograd.grad(_weighted(losses, "mel", "magnitude"), heard)
        size, pulls = wanted.norm(), []
        if judged:
            losses |= self.judge(heard, real)
            pulls.append((self.judged, "verdict", "alike"))
        if self.listens:
            losses |= self.listen(heard, real)
            pulls.append((self.listened, "misheard", "distance"))
        for share, *names in pulls:
            (pull,) = torch.autograd.grad(_weighted(losses, *names), heard)
            wanted = wanted + pull * (share * size / pull.norm().clamp_min(1e-9))
        _learn(self.teach_codec, (made[:, 0] * wanted).sum() + _weighted(losses, "commitment", "told"))
        self.losses = {name: loss.detach() for name, loss in losses.items()}

    def judge(self, made: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the critics' losses for `made`, after training them on it."""
        start = max(0, (made.shape[1] - self.settings.critic_frames * FRAME_SAMPLES) // 2)
        size = real.square().mean(1, keepdim=True).sqrt().clamp_min(1e-3)  # loudness tells them nothing
        made, real = (wav[:, start : made.shape[1] - start] / size for wav in (made, real))
        seen = self.critics(real)
        told = critic_loss(self.critics(made.detach()), seen)
        _learn(self.teach_critics, told)
        seen = [[state.detach() for state in states] for states in seen]
        self.critics.requires_grad_(False)
        verdict, alike = codec_losses(self.critics(made), seen)
        self.critics.requires_grad_(True)
        return {"verdict": verdict, "alike": alike, "critics": told}

    def listen(self, made: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return how much of the content of `real` the listener hears in `made`, after training it on both."""
        heard = self.listener(real)
        seen = self.listener(made.detach())
        _learn(self.teach_listener, misheard(heard[-1], self.said) + 0.5 * misheard(seen[-1], self.said))
        told = {"real wrong": wrong(heard[-1], self.said), "made wrong": wrong(seen[-1], self.said)}
        heard = [state.detach() for state in heard]
        self.listener.requires_grad_(False)
        seen = self.listener(made)
        self.listener.requires_grad_(True)
        return {"misheard": misheard(seen[-1], self.said), "distance": distance(seen, heard), **told}

    def report(self) -> None:
        used = (self.codec.books.count > 0.1).float().mean(1)
        told = " ".join(f"{name} {float(loss):.3f}" for name, loss in self.losses.items())
        share = f"{float(used.min()):.2f}..{float(used.max()):.2f}"
        print(f"codec: {self.minutes:.2f} min, step {self.steps}, {told}, books used {share}", flush=True)

    @property
    def sound(self) -> bool:
        """True if all losses are finite."""
        return all(math.isfinite(float(loss)) for loss in self.losses.values())

    def keep(self) -> None:
        """Save the codec, and its critics."""
        save(self.codec, self.settings.out, self.minutes, self.steps, self.settings.fixed_codes)
        for name, part in self.judges.items():
            tensors = {key: tensor.half().contiguous() for key, tensor in part.state_dict().items()}
            save_file(tensors, self.settings.out / f"{name}.safetensors")

    def go_back(self) -> None:
        """Return to the last save, with fresh optimisers."""
        load(self.codec, self.settings.out)
        for name, part in self.judges.items():
            path = self.settings.out / f"{name}.safetensors"
            if path.is_file():  # they can start fresh beside an old codec
                part.load_state_dict({key: tensor.float() for key, tensor in load_file(path).items()})
        self.__post_init__()


def _weighted(losses: dict[str, torch.Tensor], *names: str) -> torch.Tensor | int:
    return sum(WEIGHTS.get(name, 1.0) * losses[name] for name in names if name in losses)


def _learn(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_([one for group in optimiser.param_groups for one in group["params"]], 30.0)
    optimiser.step()
