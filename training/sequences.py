"""Spoken lines to packed training sequences, in the very form engine/prompt.py gives to the talker.

    <|tts|> [<|ref_text|> TRANSCRIPT] [<|ref_audio|> ROWS] <|text|> TEXT <|audio|> ROWS

Knows no network and no clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from .clips import Clips
from .corpus import SPEEDS
from .talker import CODEBOOKS, Batch

BOC, EOC = 1024, 1025
FILLER = 0  # the id under a reference's rows
MOST_FRAMES, MOST_REFERENCE = 780, 700  # longest speech and reference, 25 frames a second
LONGEST = 2560  # positions; a bound on what the above add up to, texts included
_TAG = re.compile(r"(<\|[^|]*\|>)")


@dataclass(frozen=True)
class Example:
    """One sequence before packing: ids [P], rows [P, N] where is_code, targets [P, N] (-1: not learned)."""

    ids: np.ndarray
    rows: np.ndarray
    is_code: np.ndarray
    targets: np.ndarray


def delayed(codes: np.ndarray) -> np.ndarray:
    """codes [T, N] -> rows [T + N - 1, N], as engine.delay.apply_v3."""
    frames, books = codes.shape
    rows = np.full((frames + books - 1, books), BOC, np.int16)
    for book in range(books):
        rows[book : book + frames, book] = codes[:, book]
        rows[book + frames :, book] = EOC
    return rows


class Words:
    """Text to ids: tags and commands as their tokens, all else as the tokenizer has it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> np.ndarray:
        ids: list[int] = []
        for piece in filter(None, _TAG.split(text)):
            if _TAG.fullmatch(piece):
                ids.append(self.token(piece))
            else:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return np.array(ids, np.int16)

    def token(self, name: str) -> int:
        return self._tokenizer.token_to_id(name)


def example(words: Words, text: str, codes: np.ndarray, reference: np.ndarray | None = None, said: str = "") -> Example:
    """The sequence that teaches to say `text` as `codes` [T, N], in the voice of `reference` [R, N] that says `said`.

    With a transcript the reference is learned too: it is speech to a text like any other.
    """
    parts: list[tuple[np.ndarray, bool]] = [(np.array([words.token("<|tts|>")]), False)]
    if reference is not None:
        if said:
            parts.append((np.concatenate([[words.token("<|ref_text|>")], words(said)]), False))
        parts.append((np.array([words.token("<|ref_audio|>")]), False))
        parts.append((delayed(reference), bool(said)))
    parts.append((np.concatenate([[words.token("<|text|>")], words(text), [words.token("<|audio|>")]]), False))
    parts.append((delayed(codes), True))
    length = sum(len(part) for part, _ in parts) - 1  # the last row is learned and never read
    ids, rows = np.full(length + 1, FILLER, np.int16), np.zeros((length + 1, CODEBOOKS), np.int16)
    is_code = np.zeros(length + 1, bool)
    targets = np.full((length, CODEBOOKS), -1, np.int16)
    start = 0
    for part, learned in parts:
        stop = start + len(part)
        if part.ndim == 1:
            ids[start:stop] = part
        else:
            rows[start:stop], is_code[start:stop] = part, True
            if learned:  # BOC is laid by the engine, nobody has to know it
                targets[start - 1 : stop - 1] = np.where(part == BOC, -1, part)
        start = stop
    return Example(ids[:length], rows[:length], is_code[:length], targets)


def pack(examples: list[Example], positions: int, sequences: int) -> Batch:
    """Examples one after another, filled up to fixed sizes so that every batch has one shape."""
    count = sum(len(example.ids) for example in examples)
    assert count <= positions and len(examples) < sequences
    batch = {
        "ids": np.zeros(positions, np.int64),
        "codes": np.zeros((positions, CODEBOOKS), np.int64),
        "is_code": np.zeros(positions, bool),
        "targets": np.full((positions, CODEBOOKS), -1, np.int64),
        "place": np.zeros(positions, np.int64),
        "ends": np.full(sequences + 1, positions, np.int32),
    }
    start = 0
    for number, one in enumerate(examples):
        stop = start + len(one.ids)
        batch["ids"][start:stop], batch["codes"][start:stop] = one.ids, one.rows
        batch["is_code"][start:stop], batch["targets"][start:stop] = one.is_code, one.targets
        batch["place"][start:stop] = np.arange(stop - start)
        batch["ends"][number] = start
        start = stop
    batch["ends"][len(examples)] = start
    return Batch(**{name: torch.from_numpy(array) for name, array in batch.items()}, longest=LONGEST)


class Sampler:
    """Draws examples from clips: who speaks, how much, and with which reference."""

    def __init__(self, clips: Clips, words: Words, home: str, seed: int, noise: float = 0.0):
        """home: the speaker of text without a voice. noise: share of the read codes that are replaced by others."""
        self.words, self.home, self.noise = words, home, noise
        self.codes, self.starts = clips.codes.numpy(), clips.starts.numpy()
        self.rng = np.random.default_rng(seed)
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.texts = clips.texts
        for clip, (text, speaker) in enumerate(zip(clips.texts, clips.speakers, strict=True)):
            speed = next((tag for tag in SPEEDS if text.startswith(tag)), "")
            groups[speaker, speed].append(clip)
        self.groups = {group: np.array(found) for group, found in groups.items()}
        frames = {group: sum(self._frames(clip) for clip in found) for group, found in self.groups.items()}
        self.keys = list(self.groups)
        self.shares = np.cumsum([frames[key] for key in self.keys]) / sum(frames.values())  # up to 1

    def batch(self, positions: int, sequences: int) -> Batch:
        """Examples until `positions` are full; what does not fit is left for another time."""
        found, room, misses = [], positions, 0
        while misses < 4 and len(found) < sequences - 1:
            one = self.draw()
            if len(one.ids) > room:
                misses += 1
                continue
            found.append(one)
            room -= len(one.ids)
        return pack(found, positions, sequences)

    def draw(self) -> Example:
        """A random example. Only the home speaker speaks without a reference."""
        speaker, speed = self.keys[np.searchsorted(self.shares, self.rng.random())]
        text, codes = self._said(speaker, speed, MOST_FRAMES, (0.62, 0.18, 0.08, 0.06, 0.06))
        reference, said = None, ""
        if speaker != self.home or self.rng.random() < 0.3:
            said, reference = self._said(
                speaker, "" if (speaker, "") in self.groups else speed, MOST_REFERENCE, (0.25, 0.3, 0.25, 0.12, 0.08)
            )
            said = said if self.rng.random() < 0.6 else ""
        one = example(self.words, text, codes, reference, said)
        if self.noise:
            hit = self.rng.random(one.rows.shape) < self.noise * 2 * self.rng.random()
            hit &= one.is_code[:, None] & (one.rows < BOC)
            one.rows[hit] = self.rng.integers(0, BOC, hit.sum())
        return one

    def _said(self, speaker: str, speed: str, most: int, shares: tuple[float, ...]) -> tuple[str, np.ndarray]:
        """One clip or several joined into one: (text, codes [T, N])."""
        found = self.groups[speaker, speed]
        wanted = (1, 2, 3, 5, 9)[self.rng.choice(5, p=shares)]
        texts, codes, frames = [], [], 0
        for clip in self.rng.choice(found, wanted):
            if texts and frames + self._frames(clip) > most:
                break
            text = self.texts[clip]
            texts.append(text.removeprefix(speed).strip() if texts else text)
            codes.append(self.codes[self.starts[clip] : self.starts[clip + 1]])
            frames += self._frames(clip)
        return " ".join(texts), np.concatenate(codes)

    def _frames(self, clip: int) -> int:
        return int(self.starts[clip + 1] - self.starts[clip])
