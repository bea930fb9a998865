"""Sentences spoken by many voices into shards on disk, on all cores at once. Knows no codec.

A shard is `NAME.i16`, its utterances one after another as 16-bit samples at 24 kHz, and `NAME.json`, what they are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from . import corpus
from .voices import DEFAULT, SAMPLE_RATE, VOICES, Silent, seed_of, shares, timed

MAX_SECONDS = 14.0
_MEAN_SECONDS = 2.0  # of a sentence, at the least: how many sentences are asked for


@dataclass(frozen=True)
class Utterance:
    """text: with tags; start, samples: where it lies in the shard; words: the millisecond at which each word begins,
    empty where that is not known."""

    text: str
    speaker: str
    start: int
    samples: int
    words: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """One shard to be made."""

    path: Path
    split: str
    seed: int
    seconds: float
    speakers: tuple[str, ...]
    deadline: float  # time.time() at which it ends whatever it has


def make(job: Job) -> float:
    """Writes one shard; returns its seconds of speech."""
    torch.set_num_threads(1)
    dice = random.Random(job.seed)
    chances = shares(list(job.speakers))
    made: list[Utterance] = []
    total = 0
    with open(job.path.with_suffix(".i16"), "wb") as file:
        for text in corpus.sentences(job.split, int(job.seconds / _MEAN_SECONDS) + 8, job.seed):
            if total >= job.seconds * SAMPLE_RATE or time.time() > job.deadline:
                break
            (speaker,) = dice.choices(job.speakers, chances)
            try:
                spoken = timed(speaker, text)
            except Silent:
                continue
            wav = spoken.wav
            if len(wav) > MAX_SECONDS * SAMPLE_RATE:
                continue
            words = tuple(round(1000 * start) for start in spoken.starts)
            made.append(Utterance(text, speaker, total, len(wav), words))
            file.write((wav * 32767).round().to(torch.int16).numpy().tobytes())
            total += len(wav)
    job.path.with_suffix(".json").write_text(json.dumps([asdict(one) for one in made]), encoding="utf-8")
    return total / SAMPLE_RATE


def load_shards(folders: Sequence[Path]) -> tuple[torch.Tensor, list[Utterance]]:
    """All shards in `folders` as one: int16 samples, and the utterances in them."""
    paths = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    paths = [path for path in paths if path.with_suffix(".i16").stat().st_size]
    assert paths, f"there are no shards in {folders}"
    sizes = [path.with_suffix(".i16").stat().st_size // 2 for path in paths]
    samples, utterances, begin = np.empty(sum(sizes), np.int16), [], 0
    for path, size in zip(paths, sizes, strict=True):
        made = [Utterance(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        utterances += [replace(one, start=begin + one.start) for one in made]
        with open(path.with_suffix(".i16"), "rb") as file:
            file.readinto(memoryview(samples[begin : begin + size]).cast("B"))
        begin += size
    return torch.from_numpy(samples), utterances


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--split", choices=("train", "heldout"), default="train")
    parser.add_argument("--hours", type=float, default=50.0)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long with what there is")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--speakers", default="all", help="names with commas between them, or all")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    speakers = tuple(VOICES) if given.speakers == "all" else tuple(given.speakers.split(","))
    assert all(name in VOICES for name in speakers), f"the voices are {', '.join(VOICES)}; {DEFAULT} is the first"
    given.out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    each, deadline = given.hours * 3600 / given.shards, begin + 60 * given.minutes
    jobs = [
        Job(
            given.out / f"{given.split}-{i:03d}",
            given.split,
            seed_of(given.seed, given.split, i),
            each,
            speakers,
            deadline,
        )
        for i in range(given.shards)
    ]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        total = sum(pool.imap_unordered(make, jobs))
    took = time.time() - begin
    print(
        f"synthesise: {total / 3600:.2f} h of {len(speakers)} speakers in {took:.0f} s, {total / took:.0f} x",
        flush=True,
    )


if __name__ == "__main__":
    main()
