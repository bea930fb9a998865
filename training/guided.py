"""Trains a small talker on a narrow domain with the two cores of a plain machine, its attention guided by word times.

    python -m training.guided speech --work DIR --codec DIR --part 0      (several parts, side by side)
    python -m training.guided speech --work DIR --codec DIR --split heldout
    python -m training.guided train --work DIR --minutes 35
    python -m training.export --talker DIR/talker --codec DIR --domain narrow

Two processes work on the same weights without waiting for each other. Knows the one voice without a reference alone.
"""

from __future__ import annotations

import argparse
import bisect
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

from .muon import Muon
from .narrow import sentences, word_tokenizer
from .sequences import Example, Said, Words, example
from .talker import CODE_VOCAB, CODEBOOKS, Shape, Talker, loss_of
from .weights import load_talker, save_talker

SHAPE = Shape(text_vocab=1200, hidden=256, layers=5, heads=4, kv_heads=2, head_dim=64, intermediate=640)
CODEBOOK_WEIGHTS = (3.0, 2.5, 1.5, 0.9, 0.6, 0.5, 0.4, 0.4)
GUIDED_LAYERS = (1, 2)  # head 0 of these looks at the word that is spoken in the next frame
GUIDE_WEIGHT = 0.2
POSITIONS = 1800  # a batch
RATE, WARM_UP, AVERAGE, NOISE, DROPOUT = 2e-3, 0.02, 0.997, 0.08, 0.08
FRAME_SECONDS = 0.04
_GROUP_NONE, _COLUMN_NONE = -1, -2


@dataclass(frozen=True)
class Guided:
    """An example; `spoken` [P]: number of the word that the next frame says, -1 before speech; `word` [P]: number of
    the word that a position of the text belongs to, -2 elsewhere."""

    example: Example
    spoken: np.ndarray
    word: np.ndarray


def guided(words: Words, tokenizer, text: str, codes: np.ndarray, starts: tuple[float, ...]) -> Guided:
    """An example whose attention is known. starts: the second at which each word between white space begins."""
    one = example(words, Said(text, codes))
    offsets = tokenizer.encode(text).offsets
    first = len(offsets) + 2  # the position of <|audio|>, which predicts row 0
    spoken = np.full(len(one.ids), _GROUP_NONE, np.int64)
    for row in range(len(one.ids) - first):
        now = (min(row, len(codes) - 1) + 1) * FRAME_SECONDS
        spoken[first + row] = max(0, bisect.bisect_right(starts, now) - 1)
    word = np.full(len(one.ids), _COLUMN_NONE, np.int64)
    word[2:first] = [text[:end].count(" ") for _, end in offsets]
    return Guided(one, spoken, word)


def load(paths: list[Path]) -> list[Guided]:
    """What `speech` wrote, as examples."""
    tokenizer = word_tokenizer()
    words = Words(tokenizer)
    made = [one for path in paths for one in torch.load(path)]
    return [guided(words, tokenizer, text, codes.numpy(), starts) for text, codes, starts in made]


def collate(found: list[Guided], noise: float = 0.0, dice: np.random.Generator | None = None) -> list[torch.Tensor]:
    """ids, rows, is_code, targets, spoken, word, each [B, T, ...], padded at the end."""
    size = (len(found), max(len(one.spoken) for one in found))
    ids, is_code = np.zeros(size, np.int64), np.zeros(size, bool)
    rows, targets = np.zeros((*size, CODEBOOKS), np.int64), np.full((*size, CODEBOOKS), -1, np.int64)
    spoken, word = np.full(size, _GROUP_NONE, np.int64), np.full(size, _COLUMN_NONE, np.int64)
    for b, one in enumerate(found):
        n, read = len(one.spoken), one.example.rows.astype(np.int64)
        if noise:
            hit = (dice.random(read.shape) < noise * 2 * dice.random()) & one.example.is_code[:, None] & (read < 1024)
            read[hit] = dice.integers(0, 1024, hit.sum())
        ids[b, :n], rows[b, :n], is_code[b, :n] = one.example.ids, read, one.example.is_code
        targets[b, :n], spoken[b, :n], word[b, :n] = one.example.targets, one.spoken, one.word
    return [torch.from_numpy(array) for array in (ids, rows, is_code, targets, spoken, word)]


def losses(model: Talker, ids, rows, is_code, targets, spoken, word) -> tuple[torch.Tensor, torch.Tensor]:
    """(Losses as `loss_of` gives them, mean cross entropy of the guided heads)."""
    (batch, length), dim = ids.shape, model.shape.head_dim
    hidden_from = torch.ones(length, length, dtype=torch.bool).triu(1)
    known, match = spoken >= 0, spoken[:, :, None] == word[:, None, :]
    guides = []

    def attend(q, k, v, guided_here):
        q, k, v = (t.to(v.dtype).view(batch, length, -1, dim).transpose(1, 2) for t in (q, k, v))
        if guided_here:
            scores = (q[:, 0] @ k[:, 0].mT).float() * dim**-0.5
            chances = scores.masked_fill(hidden_from, -1e9).log_softmax(-1)
            guides.append(-torch.logsumexp(chances.masked_fill(~match, -1e9), -1)[known].mean())
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).reshape(batch * length, -1, dim)

    with torch.autocast("cpu", torch.bfloat16):
        x = model.codes(rows.flatten(0, 1) + model.offsets).sum(1)
        x = torch.where(is_code.view(-1, 1), x, model.text(ids.flatten()))
        angles = (torch.arange(length).repeat(batch).unsqueeze(1) * model.frequencies).repeat(1, 2).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        for number, block in enumerate(model.blocks):
            x = block(x, cos, sin, lambda q, k, v, n=number: attend(q, k, v, n in GUIDED_LAYERS))
        wanted = targets.flatten(0, 1)
        places = (wanted >= 0).any(1).nonzero()[:, 0]
        logits = F.linear(model.norm(x[places]), model.codes.weight).view(-1, CODEBOOKS, CODE_VOCAB)
    return loss_of(logits, wanted[places], torch.tensor(CODEBOOK_WEIGHTS)), sum(guides) / len(guides)


def work(rank: int, model: Talker, args: argparse.Namespace, begin: float) -> None:
    """One of the processes: takes batches of like length and moves the shared weights until the time is over."""
    torch.set_num_threads(1)
    examples = sorted(load(sorted(args.work.glob("train*.codes"))), key=lambda one: len(one.spoken))
    tests = [collate(load(sorted(args.work.glob("heldout*.codes")))[:40])]
    dice = np.random.default_rng(rank)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    optimizers = [Muon(matrices, RATE, weight_decay=0.02), torch.optim.AdamW(others, RATE, (0.9, 0.95), fused=True)]
    average = copy.deepcopy(model).eval()
    model.train()
    step, told = 0, time.time()
    while (elapsed := time.time() - begin) < 60 * args.minutes:
        share = elapsed / (60 * args.minutes)
        rate = RATE * min(1.0, share / WARM_UP) * (0.03 + 0.97 * (0.5 + 0.5 * math.cos(math.pi * share)))
        start = int(dice.integers(len(examples)))
        count = max(4, POSITIONS // len(examples[start].spoken))
        start = min(start, len(examples) - count)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        found, guide = losses(model, *collate(examples[start : start + count], NOISE, dice))
        (found[-1] + GUIDE_WEIGHT * guide).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        with torch.no_grad():
            keep = min(AVERAGE, step / (step + 10))
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - keep)
        if rank == 0 and time.time() - told > 60:
            told = time.time()
            tell(average, tests, found, elapsed, step)
            save_talker(args.work / "talker", model.shape, average.state_dict(), {"minutes": round(elapsed / 60, 1)})
    if rank == 0:
        tell(average, tests, found, elapsed, step)
        save_talker(args.work / "talker", model.shape, average.state_dict(), {"minutes": args.minutes})


@torch.no_grad()
def tell(average: Talker, tests: list, found: torch.Tensor, elapsed: float, step: int) -> None:
    """Prints how far it is."""
    held, guide = losses(average, *tests[0])
    shown = " ".join(f"{value:.3f}" for value in held.tolist())
    print(f"{elapsed:.0f} s  step {step}  train {found[-1].item():.3f}  heldout {shown}  guide {guide:.3f}", flush=True)


def train(args: argparse.Namespace) -> None:
    """Two processes on shared weights."""
    multiprocessing.set_start_method("spawn")
    torch.manual_seed(0)
    model = Talker(SHAPE, DROPOUT)
    if args.resume:
        model.load_state_dict(load_talker(args.resume)[1])
    model.share_memory()
    begin = time.time()
    workers = [multiprocessing.Process(target=work, args=(rank, model, args, begin)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def speech(args: argparse.Namespace) -> None:
    """Speaks a part of the sentences and writes them as codes with the times of their words."""
    from engine.checkpoint import open_codec
    from engine.codec import build_encoder

    from .encode import encode_batch
    from .voices import DEFAULT, timed

    encoder = build_encoder(open_codec(args.codec).weights, "cpu")
    made = []
    for text in sentences(args.split, args.count, args.part):
        spoken = timed(DEFAULT, text)
        codes = encode_batch(encoder, F.pad(spoken.wav, (0, -len(spoken.wav) % 960))[None])[0]
        made.append((text, codes, spoken.starts))
    args.work.mkdir(parents=True, exist_ok=True)
    torch.save(made, args.work / f"{args.split}{args.part}.codes")
    print(f"{args.split} {args.part}: {len(made)} sentences", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("speech", "train"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the data and of the talker")
    parser.add_argument("--codec", type=Path, help="folder of the codec, for speech")
    parser.add_argument("--split", choices=("train", "heldout"), default="train")
    parser.add_argument("--part", type=int, default=0, help="another number gives other sentences")
    parser.add_argument("--count", type=int, default=1600, help="sentences of a part")
    parser.add_argument("--resume", type=Path, help="folder of an earlier talker")
    parser.add_argument("--minutes", type=float, default=35.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"speech": speech, "train": train}[args.stage](args)


if __name__ == "__main__":
    main()
