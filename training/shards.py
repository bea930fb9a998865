"""Shards of speech on disk.

A shard is `NAME.i16`, its utterances end to end as 16-bit samples at 24 kHz; `NAME.json`, their descriptions; and
`NAME.sym`, a byte for each hundredth of a second: the symbol heard, 0 for none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

SAMPLE_RATE = 24_000
STEP = SAMPLE_RATE // 100  # unit of loudness, silence and symbols
MAX_SECONDS = 31.0  # of an utterance


@dataclass(frozen=True)
class Utterance:
    """An utterance of a shard.

    text: with tags; start, samples: its place in the shard; words: the millisecond at which each word begins, empty if
    unknown.
    """

    text: str
    speaker: str
    start: int
    samples: int
    words: tuple[int, ...] = ()


def load_shards(folders: Sequence[Path]) -> tuple[torch.Tensor, list[Utterance]]:
    """Load all shards in `folders` as one: int16 samples, and the utterances in them."""
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
