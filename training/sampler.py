"""Draw training examples from coded clips: the speaker, the length, and the reference."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .clips import Clips
from .corpus import SPEEDS
from .sequences import BOC, FRAME_MS, LONGEST, MOST_FRAMES, MOST_REFERENCE, Example, Said, Words, example, pack
from .talker import Batch

_JOINED = (1, 2, 3, 5, 9)  # clips joined into one
_SPEECH_SHARES = (0.62, 0.18, 0.08, 0.06, 0.06)
_REFERENCE_SHARES = (0.25, 0.3, 0.25, 0.12, 0.08)
_HOME_CLONED, _TRANSCRIBED = 0.3, 0.6  # how often the home speaker has a reference, and a reference a transcript


class Sampler:
    """Endless examples."""

    def __init__(self, clips: Clips, words: Words, home: str, seed: int, noise: float = 0.0):
        """home: the speaker of text without a voice. noise: share of the input codes replaced by others."""
        self.words, self.home, self.noise = words, home, noise
        self.codes, self.starts = clips.codes.numpy(), clips.starts.numpy()
        self.times, self.time_starts = clips.words.numpy(), clips.word_starts.numpy()
        self.rng = np.random.default_rng(seed)
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.texts = clips.texts
        for clip, (text, speaker) in enumerate(zip(clips.texts, clips.speakers, strict=True)):
            speed = next((tag for tag in SPEEDS if text.startswith(tag)), "")
            groups[speaker, speed].append(clip)
        self.groups = {group: np.array(found) for group, found in groups.items()}
        lengths = np.diff(self.starts)
        frames = [lengths[found].sum() for found in self.groups.values()]
        self.keys = list(self.groups)
        self.shares = np.cumsum(frames)[:-1] / np.sum(frames)

    def batch(self, positions: int, sequences: int) -> Batch:
        """Return examples that fill up to `positions`. An example that does not fit is kept for later."""
        found, room, misses = [], positions, 0
        while misses < 4 and len(found) < sequences - positions // LONGEST - 2:
            one = self.draw()
            if len(one.ids) > min(room, LONGEST):
                misses += 1
                continue
            found.append(one)
            room -= len(one.ids)
        return pack(found, positions, sequences)

    def draw(self) -> Example:
        """Return a random example. Only the home speaker speaks without a reference."""
        speaker, speed = self.keys[np.searchsorted(self.shares, self.rng.random(), side="right")]
        said, reference = self.said(speaker, speed, MOST_FRAMES, _SPEECH_SHARES), None
        if speaker != self.home or self.rng.random() < _HOME_CLONED:
            usual = "" if (speaker, "") in self.groups else speed
            reference = self.said(speaker, usual, MOST_REFERENCE, _REFERENCE_SHARES)
            if self.rng.random() >= _TRANSCRIBED:
                reference = Said("", reference.codes)
        one = example(self.words, said, reference)
        if self.noise:
            hit = self.rng.random(one.rows.shape, np.float32) < self.noise * 2 * self.rng.random()
            hit &= one.is_code[:, None] & (one.rows < BOC)
            one.rows[hit] = self.rng.integers(0, BOC, hit.sum())
        return one

    def said(self, speaker: str, speed: str, most: int, shares: tuple[float, ...]) -> Said:
        """Return one clip, or several joined."""
        found = self.groups[speaker, speed]
        wanted = self.rng.choice(_JOINED, p=shares)
        texts, codes, times, frames, known = [], [], [], 0, True
        for clip in found[self.rng.integers(0, len(found), wanted)]:
            length = int(self.starts[clip + 1] - self.starts[clip])
            if texts and frames + length > most:
                break
            text = self.texts[clip]
            texts.append(text.removeprefix(speed).strip() if texts else text)
            codes.append(self.codes[self.starts[clip] : self.starts[clip + 1]])
            own = self.times[self.time_starts[clip] : self.time_starts[clip + 1]]
            times.append(own + frames * FRAME_MS)
            known &= len(own) > 0
            frames += length
        starts = np.concatenate(times) if known else ()
        return Said(" ".join(texts), np.concatenate(codes), starts)
