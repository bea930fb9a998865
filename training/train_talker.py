"""Train the talker on coded clips for a given time, and save its averaged weights.

python -m training.train_talker --data train.safetensors --heldout heldout.safetensors --out DIR --minutes 12
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .clips import Clips
from .muon import Muon
from .natural_voices import DEFAULT
from .sampler import Sampler
from .sequences import Words
from .talker import CODEBOOKS, Batch, Shape, Talker, loss_of
from .tokenizer import byte_tokenizer
from .weights import load_talker, save_talker

# The first codebooks carry the words; the last ones polish the sound.
CODEBOOK_WEIGHTS = (3.0, 2.0, 1.5, 1.25, 1.0, 1.0, 1.0, 1.0)
WARM_UP = 0.03  # share of the time
COMPILED = 3  # steps after which all code is compiled and the time begins to count for the rate
AVERAGE = 0.999  # of the weights, from step to step
EVALUATIONS = 4  # batches
LOOK_EVERY = 64  # batches after which a worker looks for new data


class Stream(IterableDataset):
    """Endless batches, a different series in every worker. Files that appear later are read too."""

    def __init__(self, args: argparse.Namespace):
        self.args = args

    def __iter__(self):
        info = get_worker_info()
        worker, lots = info.id if info else 0, {}
        words = Words(byte_tokenizer())
        for number in itertools.count():
            if not lots or number % LOOK_EVERY == worker % LOOK_EVERY:
                new = [path for path in self.args.data if path not in lots and path.exists()]
                if new:
                    lots |= {path: Clips.load(path) for path in new}
                    clips = Clips.all(list(lots.values()))
                    seed = 1000 * (self.args.seed + len(lots)) + worker
                    sampler = Sampler(clips, words, self.args.home, seed, self.args.noise)
                    if worker == 0:
                        print(f"talker: learns from {len(clips.codes) / 90_000:.1f} h", flush=True)
            yield sampler.batch(self.args.positions, self.args.sequences)


def whole(batches: list[Batch]) -> Batch:
    return batches[0]


class Training:
    """One run: model, optimizers and average. Progress is passed in as the share of time."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        torch.manual_seed(args.seed)
        if args.resume:
            shape, state, self.note = load_talker(args.resume)
            self.model = Talker(shape, args.dropout)
            self.model.load_state_dict(state)
        else:
            self.note = {"minutes": 0.0, "steps": 0, "positions": 0}
            sizes = {name: getattr(args, name) for name in asdict(Shape()) if name != "text_vocab"}
            vocab = -(-byte_tokenizer().get_vocab_size() // 64) * 64
            self.model = Talker(Shape(vocab, **sizes), args.dropout)
        self.model.to(self.device)
        self.average = copy.deepcopy(self.model).eval()
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        known = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in known]
        self.optimizers = [
            Muon(matrices, args.lr, weight_decay=args.decay),
            torch.optim.AdamW(others, args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self.weights = torch.tensor(CODEBOOK_WEIGHTS, device=self.device)
        self.losses = torch.compile(self._losses, dynamic=False) if args.compile else self._losses
        self.steps = 0

    def _losses(self, tensors: dict[str, torch.Tensor], longest: int, model: Talker | None = None) -> torch.Tensor:
        """Return [N + 2]: losses of the codebooks, their weighted mean, and the guided heads'."""
        with torch.autocast(self.device.type, torch.bfloat16):
            logits, guide = (model or self.model)(Batch(**tensors, longest=longest))
        return torch.cat([loss_of(logits, tensors["targets"], self.weights), guide.float()[None]])

    def step(self, batch: Batch, share: float) -> torch.Tensor:
        """Train one step at `share` of the time, and return the losses, still on the device."""
        rate = min(1.0, (share + 1e-4) / WARM_UP) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, share))))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.args.lr * rate
        losses = self.losses(batch.tensors(), batch.longest)
        (losses[-2] + self.args.guide * losses[-1]).backward()
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
        """Return the averaged weights' losses on held-out batches, as in `_losses`."""
        found = [self._losses(batch.tensors(), batch.longest, self.average) for batch in batches]
        values = torch.stack(found).mean(0).tolist()
        if not all(map(math.isfinite, values)):
            raise SystemExit("talker: the losses are not numbers; what was saved before stays")
        return values

    def save(self, minutes: float, losses: list[float]) -> None:
        """Save the averaged weights."""
        note = {
            "minutes": round(self.note["minutes"] + minutes, 2),
            "steps": self.note["steps"] + self.steps,
            "positions": self.note["positions"] + self.steps * self.args.positions,
            "heldout_loss": [round(value, 4) for value in losses],
        }
        save_talker(self.args.out, self.model.shape, self.average.state_dict(), note)


class Clock:
    """Share of the time elapsed: of all of it, and of the part after compilation."""

    def __init__(self, minutes: float):
        self.begin = self.told = self.saved = time.monotonic()
        self.end, self.first = self.begin + 60 * minutes, None

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def over(self) -> bool:
        return time.monotonic() >= self.end

    def start(self) -> None:
        """Start the decay of the rate."""
        self.first = time.monotonic()

    def share(self) -> float:
        return 0.0 if self.first is None else (time.monotonic() - self.first) / max(1.0, self.end - self.first)


def run(args: argparse.Namespace) -> None:
    """Train until the time is over."""
    clock = Clock(args.minutes)
    loader = DataLoader(
        Stream(args), batch_size=1, num_workers=args.workers, collate_fn=whole, pin_memory=args.device == "cuda",
        prefetch_factor=4 if args.workers else None, in_order=False,
    )  # fmt: skip
    batches = iter(loader)
    next(batches)  # the workers start before the GPU does
    training = Training(args)
    heldout = Sampler(Clips.load(args.heldout), Words(byte_tokenizer()), args.home, 0)
    tests = [heldout.batch(args.positions, args.sequences).to(training.device) for _ in range(args.tests)]
    print(f"talker: {sum(p.numel() for p in training.model.parameters()):,} parameters", flush=True)
    tested: list[float] = []
    while not training.steps or (not clock.over() and training.steps < args.steps):
        losses = training.step(next(batches).to(training.device), clock.share())
        if training.steps == COMPILED:
            losses.tolist()  # waits for the device
            print(f"{clock.elapsed():6.0f} s  compiled", flush=True)
            clock.start()
        if training.steps in (20, 200) or time.monotonic() - clock.told > args.test_every:
            clock.told = time.monotonic()
            tested = training.evaluate(tests)
            tell(training, clock, losses, tested)
            if clock.told - clock.saved > args.save_every:
                clock.saved = clock.told
                training.save(clock.elapsed() / 60, tested)
    tested = training.evaluate(tests)
    training.save(clock.elapsed() / 60, tested)
    tell(training, clock, losses, tested)
    print("talker: done", flush=True)


def tell(training: Training, clock: Clock, losses: torch.Tensor, tested: list[float]) -> None:
    """Print the progress."""
    taken = time.monotonic() - (clock.first or clock.begin)
    speed = max(1, training.steps - COMPILED) * training.args.positions / taken
    each = " ".join(f"{value:.3f}" for value in tested[:CODEBOOKS])
    print(
        f"{clock.elapsed():6.0f} s  step {training.steps}  {speed / 1e6:.3f} M positions/s  "
        f"train {losses[-2].item():.3f} guide {losses[-1].item():.3f}  "
        f"heldout {tested[-2]:.3f} guide {tested[-1]:.3f}  codebooks {each}",
        flush=True,
    )
    if training.device.type == "cuda" and training.steps == 200:
        print(f"talker: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most", flush=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="Clips to learn from; some may come later")
    parser.add_argument("--heldout", type=Path, required=True, help="Clips to be tested on")
    parser.add_argument("--out", type=Path, required=True, help="folder of the weights")
    parser.add_argument("--resume", type=Path, help="folder of an earlier run's weights")
    parser.add_argument("--minutes", type=float, default=12.0, help="all in all, compiling included")
    parser.add_argument("--steps", type=int, default=10**9, help="at most")
    parser.add_argument("--positions", type=int, default=32768, help="a batch")
    parser.add_argument("--sequences", type=int, default=384, help="most in a batch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.08, help="share of the codes read that are replaced")
    parser.add_argument("--guide", type=float, default=0.2, help="weight of the guided heads' loss")
    for name, size in asdict(Shape()).items():
        if name != "text_vocab":
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size, help="of the network")
    parser.add_argument("--home", default=DEFAULT, help="the speaker of text without a voice")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tests", type=int, default=EVALUATIONS, help="held-out batches")
    parser.add_argument("--test-every", type=float, default=45.0, help="seconds")
    parser.add_argument("--save-every", type=float, default=100.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(arguments())
