"""Who speaks the training data: flite's and espeak-ng's voices, and others made of them. Knows no network.

Both synthesisers are called in this process, through the shared libraries of their Debian packages.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import zlib
from dataclasses import dataclass

import torch

from engine.resample import resample

from . import flite
from .corpus import PAUSES, SPEEDS, TAG
from .flite import Silent

SAMPLE_RATE = 24_000
STEP = SAMPLE_RATE // 100  # what loudness, silence and symbols are measured in
EDGE_SECONDS = 0.1  # silence kept before and after the speech
LOUDNESS = 0.08  # root mean square of the louder half of a clip
PEAK = 0.95
DEFAULT = "slt"  # the voice that speaks where no reference is given

SOURCES = {
    "slt": "CMU ARCTIC slt in flite 2.2: free for any use, Carnegie Mellon University (BSD-like)",
    "rms": "CMU ARCTIC rms in flite 2.2: free for any use, Carnegie Mellon University (BSD-like)",
    "awb": "CMU ARCTIC awb in flite 2.2: free for any use, Carnegie Mellon University (BSD-like)",
    "kal16": "CMU kal diphones in flite 2.2: free for any use, Carnegie Mellon University (BSD-like)",
    "espeak": "espeak-ng 1.51: GPL-3 or later, a program; its formant synthesis holds no recordings",
}


@dataclass(frozen=True)
class Voice:
    """One speaker. `warp` moves the formants: a vocal tract 1 / warp as long. `pitch`: mean in Hz, 0 for its own.

    For espeak-ng, `base` is the name of a language and a variant, and `pitch` is on its scale of 0 to 99.
    """

    name: str
    base: str
    warp: float = 1.0
    pitch: float = 0.0
    weight: float = 1.0  # share of the data

    @property
    def licence(self) -> str:
        """Where the voice comes from, and under which licence."""
        return SOURCES["espeak" if "+" in self.base else self.base]


def _made() -> list[Voice]:
    """Speakers that nobody recorded: a flite voice with another vocal tract and another pitch."""
    table = {
        "slt": [(0.84, 118), (0.88, 200), (0.92, 140), (0.96, 185), (1.06, 205), (1.1, 160), (1.14, 230), (1.2, 190)],
        "rms": [(0.88, 0), (0.92, 0), (0.96, 0), (1.06, 0), (1.12, 0), (1.18, 0), (1.26, 0)],
        "awb": [(0.84, 95), (0.88, 130), (0.94, 105), (1.04, 150), (1.1, 120), (1.16, 175), (1.22, 205)],
        "kal16": [(0.88, 80), (0.94, 115), (1.05, 125), (1.1, 100), (1.16, 165), (1.24, 200)],
    }
    return [Voice(f"{base}-{i}", base, *settings) for base, rows in table.items() for i, settings in enumerate(rows, 1)]


def _espeak() -> list[Voice]:
    rows = [("en-us", "m1", 40), ("en-us", "m3", 30), ("en-us", "m5", 45), ("en-us", "m7", 35), ("en-us", "f1", 50)]
    rows += [("en-us", "f2", 55), ("en-us", "f3", 60), ("en-us", "f4", 45), ("en-us", "f5", 50), ("gmw/en", "m2", 40)]
    rows += [("gmw/en", "m4", 50), ("gmw/en", "f2", 50)]
    rows += [("gmw/en-GB-scotland", "m6", 40), ("gmw/en-GB-scotland", "f4", 60)]
    return [Voice(f"{a.removeprefix('gmw/').lower()}-{b}", f"{a}+{b}", 1.0, float(pitch), 0.5) for a, b, pitch in rows]


_PLAIN = [Voice("slt", "slt", weight=34), Voice("rms", "rms", weight=3), Voice("awb", "awb", weight=3)]
VOICES = {voice.name: voice for voice in [*_PLAIN, Voice("kal", "kal16", weight=3), *_made(), *_espeak()]}


@dataclass(frozen=True)
class Spoken:
    """wav: float32 [S] mono, 24 kHz; starts: the second at which each word between white space and tags begins, empty
    where the voice does not tell."""

    wav: torch.Tensor
    starts: tuple[float, ...] = ()


def _speak_flite(voice: Voice, text: str, speed: float) -> Spoken:
    data, rate, starts = flite.speak(voice.base, text, voice.pitch / voice.warp, voice.warp / speed)
    played = round(rate * voice.warp / 100) * 100  # faster than it was spoken: higher, in a shorter tract
    return Spoken(resample(data, played, SAMPLE_RATE), tuple(start * rate / played for start in starts))


_ESPEAK_WORDS = 165  # a minute
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_heard: list[torch.Tensor] = []


@_CALLBACK
def _hear(data, samples: int, _events) -> int:
    if data and samples > 0:
        _heard.append(flite.floats(data, samples))
    return 0


@functools.cache
def _espeak_library() -> tuple[ctypes.CDLL, int]:
    """The library and its sample rate."""
    library = ctypes.CDLL("libespeak-ng.so.1")
    rate = library.espeak_Initialize(2, 0, None, 0)  # 2: to the callback, before espeak_Synth returns
    assert rate > 0, "espeak-ng does not find its data: set ESPEAK_DATA_PATH"
    library.espeak_SetSynthCallback(_hear)
    library.espeak_Synth.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int,
        ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return library, rate


def _speak_espeak(voice: Voice, text: str, speed: float) -> Spoken:
    library, rate = _espeak_library()
    assert library.espeak_SetVoiceByName(voice.base.encode()) == 0, f"espeak-ng has no voice {voice.base}"
    library.espeak_SetParameter(1, round(_ESPEAK_WORDS * speed), 0)  # 1: rate
    library.espeak_SetParameter(3, round(voice.pitch), 0)  # 3: pitch
    _heard.clear()
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)  # 1: positions in characters; 1: UTF-8
    if not _heard:
        raise Silent(f"espeak-ng said nothing for {text!r}")
    return Spoken(resample(torch.cat(_heard), rate, SAMPLE_RATE))


def _loudness(wav: torch.Tensor) -> torch.Tensor:
    """Root mean square of every hundredth of a second."""
    frames = wav[: len(wav) // STEP * STEP].view(-1, STEP)
    return frames.square().mean(1).sqrt()


def trim(spoken: Spoken, edge: float = EDGE_SECONDS) -> Spoken:
    """Without the silence around it, but for `edge` seconds, which are added where it has less."""
    wav = spoken.wav
    loud = (_loudness(wav) > 0.01 * wav.abs().max().clamp_min(1e-6)).nonzero()
    if not len(loud):
        return spoken
    keep = round(edge * SAMPLE_RATE)
    start, stop = int(loud[0]) * STEP - keep, (int(loud[-1]) + 1) * STEP + keep
    wav = torch.nn.functional.pad(wav[max(0, start) : stop], (max(0, -start), max(0, stop - len(wav))))
    return Spoken(wav, tuple(max(0.0, at - start / SAMPLE_RATE) for at in spoken.starts))


def _level(wav: torch.Tensor) -> torch.Tensor:
    loudness = _loudness(wav)
    if not len(loudness):
        return wav
    loud = loudness.topk(max(1, len(loudness) // 2)).values.square().mean().sqrt().clamp_min(1e-5)
    return wav * min(LOUDNESS / float(loud), PEAK / max(1e-5, float(wav.abs().max())))


def timed(voice: str, text: str, speed: float = 1.0) -> Spoken:
    """`text` spoken by the voice of that name, a tenth of a second of silence around it.

    The tags <|prosody:speed_...|> at the beginning and <|prosody:pause|>, <|prosody:long_pause|> within are obeyed.
    Raises Silent where there is nothing to say.
    """
    speaker = VOICES[voice]
    speak = _speak_espeak if "+" in speaker.base else _speak_flite
    pieces: list[torch.Tensor] = []
    starts: list[float] = []
    told = True
    for tag, part in re.findall(rf"({TAG.pattern}|^)((?:(?!{TAG.pattern}).)*)", text):
        speed /= SPEEDS.get(tag, 1.0)
        if tag in PAUSES:  # the edges of both pieces belong to it
            pieces.append(torch.zeros(round(max(0.0, PAUSES[tag] - 2 * EDGE_SECONDS) * SAMPLE_RATE)))
        begin = sum(map(len, pieces)) / SAMPLE_RATE
        if re.search(r"\w", part):
            spoken = trim(speak(speaker, part.strip(), speed))
            pieces.append(_level(spoken.wav))
            starts += [begin + start for start in spoken.starts]
            told &= len(spoken.starts) == len(part.split())
        else:
            starts += [begin] * len(part.split())
    if not pieces:
        raise Silent(f"there is nothing to say in {text!r}")
    return Spoken(torch.cat(pieces), tuple(starts) if told else ())


def synthesise(voice: str, text: str, speed: float = 1.0) -> torch.Tensor:
    """The sound of `timed`: float32 [S] mono, 24 kHz."""
    return timed(voice, text, speed).wav


def seed_of(*parts: object) -> int:
    """A number that depends on `parts` alone."""
    return zlib.crc32(repr(parts).encode())


def shares(names: list[str]) -> list[float]:
    """How much of the data each speaker gets; the sum is 1."""
    total = math.fsum(VOICES[name].weight for name in names)
    return [VOICES[name].weight / total for name in names]
