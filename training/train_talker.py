"""Trains the talker on coded clips for a given time, and leaves its averaged weights as files. Knows no sound.

python -m training.train_talker --data train.safetensors --heldout heldout.safetensors --out DIR --minutes 12
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .clips import Clips
from .muon import Muon
from .sequences import Sampler, Words
from .talker import CODEBOOKS, Batch, Shape, Talker, loss_of
from .tokenizer import byte_tokenizer
from .weights import load_talker, save_talker

# The first codebooks carry the words; the last ones polish the sound.
CODEBOOK_WEIGHTS = (3.0, 2.0, 1.5, 1.25, 1.0, 1.0, 1.0, 1.0)
WARM_UP = 0.03  # share of the time
AVERAGE = 0.999  # of the weights, from step to step
EVALUATIONS = 4  # batches
SEQUENCES = 640  # most in a batch


class Stream(IterableDataset):
    """Batches without end, another series in every worker."""

    def __init__(self, clips: Clips, args: argparse.Namespace):
        self.clips, self.args = clips, args

    def __iter__(self):
        worker = get_worker_info()
        seed = 1000 * self.args.seed + (worker.id if worker else 0)
        sampler = Sampler(self.clips, Words(byte_tokenizer()), self.args.home, seed, self.args.noise)
        while True:
            yield sampler.batch(self.args.positions, SEQUENCES)


def whole(batches: list[Batch]) -> Batch:
    return batches[0]


class Training:
    """One run: model, optimizers, average and clock."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        torch.manual_seed(args.seed)
        if args.resume:
            shape, state, self.note = load_talker(args.resume)
            self.model = Talker(shape, args.dropout)
            self.model.load_state_dict(state)
        else:
            self.note = {"minutes": 0.0, "steps": 0, "positions": 0}
            self.model = Talker(Shape(hidden=args.hidden, layers=args.layers), args.dropout)
        self.model.to(self.device)
        self.average = copy.deepcopy(self.model).eval()
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        known = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in known]
        fused = self.device.type == "cuda"
        self.optimizers = [
            Muon(matrices, args.lr, weight_decay=args.decay),
            torch.optim.AdamW(others, args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
        ]
        self.weights = torch.tensor(CODEBOOK_WEIGHTS, device=self.device)
        self.losses = torch.compile(self._losses) if args.compile else self._losses
        self.steps = 0

    def _losses(self, ids, codes, is_code, targets, place, ends, longest):
        batch = Batch(ids, codes, is_code, targets, place, ends, longest)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(batch)
        return loss_of(logits, targets, self.weights)

    def step(self, batch: Batch, share: float) -> torch.Tensor:
        """One step at `share` of the time; returns the losses, still on the device."""
        rate = min(1.0, share / WARM_UP) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, share))))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.args.lr * rate
        b = batch
        losses = self.losses(b.ids, b.codes, b.is_code, b.targets, b.place, b.ends, b.longest)
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        keep = min(AVERAGE, self.steps / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        return losses.detach()

    @torch.no_grad()
    def evaluate(self, batches: list[Batch]) -> list[float]:
        """Losses of the averaged weights on held-out batches: each codebook's, then the weighted mean."""
        total = torch.zeros(CODEBOOKS + 1, device=self.device)
        for batch in batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                logits = self.average(batch)
            total += loss_of(logits, batch.targets, self.weights)
        return (total / len(batches)).tolist()

    def save(self, minutes: float, losses: list[float]) -> None:
        """Writes the averaged weights."""
        note = {
            "minutes": round(self.note["minutes"] + minutes, 2),
            "steps": self.note["steps"] + self.steps,
            "positions": self.note["positions"] + self.steps * self.args.positions,
            "heldout_loss": [round(value, 4) for value in losses],
        }
        save_talker(self.args.out, self.model.shape, self.average.state_dict(), note)


def run(args: argparse.Namespace) -> None:
    """Trains until the time is over."""
    begin = time.monotonic()
    clips = Clips.load(args.data)
    loader = DataLoader(
        Stream(clips, args), num_workers=args.workers, collate_fn=whole, pin_memory=args.device == "cuda",
        prefetch_factor=4 if args.workers else None,
    )  # fmt: skip
    batches = iter(loader)
    next(batches)  # the workers start before the GPU does
    training = Training(args)
    heldout = Sampler(Clips.load(args.heldout), Words(byte_tokenizer()), args.home, 0)
    tests = [heldout.batch(args.positions, SEQUENCES).to(training.device) for _ in range(EVALUATIONS)]
    hours = len(clips.codes) / 90_000
    print(f"talker: {sum(p.numel() for p in training.model.parameters()):,} parameters, {hours:.1f} h", flush=True)
    last_test = last_save = begin
    losses = torch.zeros(CODEBOOKS + 1)
    while (elapsed := time.monotonic() - begin) < 60 * args.minutes and training.steps < args.steps:
        losses = training.step(next(batches).to(training.device), elapsed / (60 * args.minutes))
        now = time.monotonic()
        if training.steps in (20, 200) or now - last_test > args.test_every:
            last_test = now
            tested = training.evaluate(tests)
            speed = training.steps * args.positions / (now - begin)
            shown = " ".join(f"{value:.3f}" for value in tested)
            print(
                f"{now - begin:6.0f} s  step {training.steps}  {speed / 1e6:.2f} M positions/s  "
                f"train {losses[-1].item():.4f}  heldout {shown}",
                flush=True,
            )
            if now - last_save > args.save_every:
                last_save = now
                training.save(elapsed / 60, tested)
    tested = training.evaluate(tests)
    training.save((time.monotonic() - begin) / 60, tested)
    print("talker: done, heldout", " ".join(f"{value:.3f}" for value in tested), flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Clips to learn from")
    parser.add_argument("--heldout", type=Path, required=True, help="Clips to be tested on")
    parser.add_argument("--out", type=Path, required=True, help="folder of the weights")
    parser.add_argument("--resume", type=Path, help="folder of an earlier run's weights")
    parser.add_argument("--minutes", type=float, default=12.0, help="all in all, compiling included")
    parser.add_argument("--steps", type=int, default=10**9, help="at most")
    parser.add_argument("--positions", type=int, default=32768, help="a batch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--noise", type=float, default=0.04, help="share of the codes read that are replaced")
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--home", default="slt", help="the speaker of text without a voice")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--test-every", type=float, default=45.0, help="seconds")
    parser.add_argument("--save-every", type=float, default=100.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(arguments())
