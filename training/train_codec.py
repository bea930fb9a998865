"""Train the codec on shards of speech within a given time, optionally resuming a run.

The codec's learning rate follows the clock and is nearly zero when the minutes are over. If the shards have symbols,
a listener teaches the codec to say them.
"""

from __future__ import annotations

import argparse
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
from .codec_model import LATENT, Codec, load, save
from .convolutions import fuse_snakes
from .critics import Critics, SpectralLoss, codec_losses, critic_loss
from .listener import Listener, Reader, distance, misheard, wrong
from .natural_voices import DEFAULT
from .repeated import Repeated

WEIGHTS = {"mel": 15.0, "magnitude": 2.0, "commitment": 2.0, "verdict": 0.3}  # the others weigh 1
JUDGED_STEPS = 1000  # of the critics, until their loss counts in full
JUDGED = 0.5  # size of the critics' gradient at the waveform, relative to the spectral losses'
LISTENED = 0.5  # of the listener's
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
    listened: float = LISTENED
    judged: float = JUDGED
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


def begin(settings: Settings, resume: bool) -> Run:
    """Return a new run, or the saved one."""
    torch.manual_seed(settings.seed)
    torch.backends.cudnn.benchmark = True
    if settings.device.startswith("cuda"):
        fuse_snakes()
    device = settings.device
    if settings.fixed_codes:
        bank = CodedBank(settings.data, settings.out, device, settings.voice, settings.focus)
    else:
        bank = Bank(settings.data, device)
    codec = Codec().to(device)
    parts = Critics(), SpectralLoss(), Listener(), Reader(LATENT)
    run = Run(settings, bank, codec, *(part.to(device) for part in parts))
    print(f"codec: {len(run.bank.samples) / 24_000 / 3600:.2f} h of speech, on {device}", flush=True)
    if resume and (settings.out / "model.safetensors").is_file():
        run.before, run.steps = load(run.codec, settings.out)
        run.go_back()
    return run


def train(settings: Settings, resume: bool) -> None:
    """Train until the time is over, saving now and then and at the end."""
    run = begin(settings, resume)
    run.begin = logged = kept = time.time()
    if settings.until:
        settings.minutes = run.before + max(1.0, settings.until - run.begin) / 60
    due = run.minutes + settings.snapshots
    while run.progress < 1.0:
        run.step()
        now = time.time()
        if now - logged < settings.log_seconds:
            continue
        run.report()
        logged = time.time()
        if not run.sound:
            print("codec: the losses are not numbers any more; back to what was last kept", flush=True)
            run.go_back()
        elif now - kept >= settings.save_seconds:
            run.keep()
            kept = time.time()
        if settings.snapshots and run.minutes >= due:
            save(run.codec, settings.out.parent / f"at_{run.minutes:05.2f}", run.minutes, run.steps)
            due += settings.snapshots
    run.report()
    run.keep()


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the shards that speak wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the codec")
    parser.add_argument("--minutes", type=float, default=Settings.minutes)
    parser.add_argument("--until", type=float, default=0.0, help="instead: seconds since 1970 at which all is over")
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--frames", type=int, default=Settings.frames)
    parser.add_argument("--rate", type=float, default=Settings.rate)
    parser.add_argument("--critic-frames", type=int, default=Settings.critic_frames)
    parser.add_argument("--critic-share", type=float, default=Settings.critic_share)
    parser.add_argument("--critic-rate", type=float, default=Settings.critic_rate)
    parser.add_argument("--listened", type=float, default=LISTENED, help="size of the listener's gradient")
    parser.add_argument("--judged", type=float, default=JUDGED, help="size of the critics' gradient")
    parser.add_argument("--snapshots", type=float, default=0.0, help="minutes between copies that stay")
    parser.add_argument("--log-seconds", type=float, default=Settings.log_seconds)
    parser.add_argument("--fixed-codes", action="store_true", help="with --resume: the decoder alone learns")
    parser.add_argument("--focus", type=float, default=Settings.focus, help="share of --voice, with --fixed-codes")
    parser.add_argument("--voice", default=DEFAULT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from what --out holds")
    given = vars(parser.parse_args(arguments))
    resume = given.pop("resume")
    if given["fixed_codes"] and not (resume and (given["out"] / "model.safetensors").is_file()):
        parser.error("--fixed-codes needs --resume and a codec in --out")
    train(Settings(**given), resume)


if __name__ == "__main__":
    main()
