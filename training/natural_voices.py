"""Natural training voices: mixtures of Kokoro's voices, with changed pitch or vocal tract.

A voice of Kokoro is a vector for every length of text. Its first half sets the sound, its second the phrasing.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

DEFAULT = "heart"  # the voice without a reference
HOME_SHARE = 0.22  # share of the default voice in the data
_PACKS = """
af_alloy af_aoede af_bella af_heart af_jessica af_kore af_nova af_river af_sarah af_sky am_adam am_echo am_eric
am_fenrir am_liam am_michael am_onyx am_puck am_santa bf_alice bf_emma bf_isabella bf_lily bm_daniel bm_fable bm_george
bm_lewis jf_alpha jf_gongitsune jf_nezumi jf_tebukuro jm_kumo
"""
SOURCES = {pack[3:]: f"Kokoro-82M {pack}: Apache-2.0" for pack in _PACKS.split()}
_SHARE = re.compile(r"([a-z]+)(-?\d+)?$")


@dataclass(frozen=True)
class Voice:
    """One speaker.

    `sound` and `phrasing`: shares of Kokoro's voices ("emma7 kumo3"), which need not sum to 1. Without `phrasing`, that
    of the sound. `pitch`: a factor. `warp` moves the formants, as a vocal tract 1 / warp as long. `rate`: of speaking.
    `weight`: share of the data.
    """

    name: str
    sound: str
    pitch: float = 1.0
    warp: float = 1.0
    phrasing: str = ""
    rate: float = 1.0
    weight: float = 0.3

    @property
    def licence(self) -> str:
        """Return the voice's origin and licence."""
        return "; ".join(SOURCES[name] for name in _shares(f"{self.sound} {self.phrasing}"))


def _shares(mix: str) -> dict[str, float]:
    found = (_SHARE.match(part) for part in mix.split())
    return {one[1]: float(one[2] or 1) for one in found}


@dataclass(frozen=True)
class Voices:
    """table [speakers, 510, 256]: the vector for each number of phonemes; pitch, warp and speed [speakers]."""

    names: tuple[str, ...]
    table: torch.Tensor
    pitch: torch.Tensor
    rate: torch.Tensor

    @classmethod
    def of(cls, names: tuple[str, ...], folder: Path) -> Voices:
        """Build the named voices. `folder` holds voices.npz: each [510, 256] under its name without the language."""
        held = np.load(folder / "voices.npz")
        base = {name: torch.from_numpy(held[name].astype(np.float32)) for name in held.files}
        voices = [VOICES[name] for name in names]

        def mixed(mix: str) -> torch.Tensor:
            shares = _shares(mix)
            return sum(share * base[name] for name, share in shares.items()) / sum(shares.values())

        table = [torch.cat([mixed(v.sound)[:, :128], mixed(v.phrasing or v.sound)[:, 128:]], 1) for v in voices]
        pitch = torch.tensor([v.pitch / v.warp for v in voices])
        return cls(names, torch.stack(table), pitch, torch.tensor([v.rate / v.warp for v in voices]))


# The speakers of engine/voice/built_in, which most people hear, and the others.
BUILT_IN = ("bella", "emma", "lewis", "michael", "fenrir", "sarah", "george", "kore", "sky")
_OTHER_NATIVE = "aoede alloy jessica river adam echo liam onyx santa alice lily daniel fable".split()
_NATIVE = [
    *(Voice(name, name, weight=6) for name in BUILT_IN),
    *(Voice(name, name, weight=0.5) for name in _OTHER_NATIVE),
]
_MIXED = [
    Voice("n1", "bella5 emma5"),
    Voice("n2", "michael5 fenrir5"),
    Voice("n3", "kore6 lewis4", phrasing="kore"),
    Voice("n4", "sarah4 george6", phrasing="george"),
    Voice("n5", "adam4 onyx6", rate=1.05),
    Voice("n6", "alice5 aoede5"),
    Voice("n7", "daniel13 liam-3", phrasing="daniel"),
    Voice("n8", "lily6 sky4", rate=0.95),
    Voice("n9", "fable5 echo5", phrasing="fable"),
]
_CHANGED = [
    Voice("w1", "bella", pitch=1.1, warp=1.08),
    Voice("w2", "emma", pitch=0.86, warp=0.93),
    Voice("w3", "michael", pitch=0.88, warp=0.92),
    Voice("w4", "michael", pitch=1.22, warp=1.09),
    Voice("w5", "fenrir", pitch=0.95, warp=0.87),
    Voice("w6", "sarah", pitch=0.85, warp=0.92),
    Voice("w7", "kore", pitch=1.15, warp=1.14, rate=0.95),
    Voice("w8", "george", pitch=0.9, warp=0.94),
    Voice("w9", "lily", pitch=1.18, warp=1.15),
    Voice("w10", "onyx", pitch=0.9, warp=0.95),
    Voice("w11", "aoede", pitch=0.8, warp=0.97),
    Voice("w12", "lewis", pitch=1.12, warp=0.9),
]
_EARLIER = [
    Voice("kumo", "kumo", weight=1),
    Voice("gongitsune", "gongitsune", weight=0.4),
    Voice("nezumi", "nezumi", phrasing="gongitsune", pitch=0.9, weight=0.4),
    Voice("m1", "kumo", pitch=0.88, warp=0.92),
    Voice("m4", "kumo5 nezumi5", pitch=1.32, warp=0.95, phrasing="kumo"),
    Voice("m10", "kumo5 alpha5", pitch=1.08, warp=0.93, phrasing="gongitsune"),
    Voice("f1", "tebukuro5 gongitsune5", pitch=0.95, phrasing="gongitsune"),
    Voice("f5", "alpha5 gongitsune5", pitch=0.95, phrasing="gongitsune"),
]


_ELSEWHERE = "kumo nezumi gongitsune tebukuro alpha".split()  # voices that speak English with an accent
_WARPS = [math.exp(0.045 * step) for step in range(-4, 5)]  # few, for those of a batch are resampled together


def _drawn(count: int) -> list[Voice]:
    """Return random voices with some minutes of speech each, so that the talker learns to follow unknown voices."""
    dice, found = random.Random(11), []
    every = [*BUILT_IN, *_OTHER_NATIVE]
    for number in range(count):
        first = dice.choice(dice.choices((BUILT_IN, _OTHER_NATIVE, _ELSEWHERE), (0.6, 0.25, 0.15))[0])
        second, third = dice.sample([name for name in every if name != first], 2)
        sound = f"{first}{dice.randint(4, 10)} {second}{dice.randint(0, 5)} {third}{dice.randint(-2, 2)}"
        phrasing = dice.choice((first if first not in _ELSEWHERE[1:] else "gongitsune", second))
        warp, pitch = dice.choice(_WARPS), math.exp(dice.uniform(-0.25, 0.25))
        found.append(Voice(f"d{number}", sound, pitch * warp, warp, phrasing, dice.uniform(0.9, 1.1), weight=0.085))
    return found


_OTHERS = [*_NATIVE, *_MIXED, *_CHANGED, *_EARLIER, *_drawn(640)]
# Never trained on, and not in any mixture: the codec is judged by these.
UNSEEN = ("puck", "eric", "isabella", "nova", "u1", "u2", "u3", "u4")
_UNSEEN = [
    *(Voice(name, name, weight=0) for name in UNSEEN[:4]),
    Voice("u1", "kumo3 nezumi4 gongitsune3", pitch=0.8, phrasing="gongitsune", weight=0),
    Voice("u2", "kumo6 tebukuro4", pitch=1.05, warp=0.9, phrasing="kumo", weight=0),
    Voice("u3", "nezumi7 tebukuro3", pitch=0.95, warp=1.1, phrasing="gongitsune", weight=0),
    Voice("u4", "gongitsune5 nezumi5", pitch=1.22, warp=0.92, phrasing="kumo", weight=0),
]
VOICES = {voice.name: voice for voice in [Voice(DEFAULT, DEFAULT), *_OTHERS, *_UNSEEN]}
TRAINED = tuple(name for name, voice in VOICES.items() if voice.weight)


def shares(names: tuple[str, ...], home: float = HOME_SHARE) -> list[float]:
    """Return each speaker's share of the data, `home` for the default voice if present. The sum is 1."""
    total = math.fsum(VOICES[name].weight for name in names if name != DEFAULT)
    home = home if DEFAULT in names and total else float(DEFAULT in names)
    return [home if name == DEFAULT else VOICES[name].weight / total * (1 - home) for name in names]
