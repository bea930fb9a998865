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
_SHORT, _SHORT_SHARE = 300, 0.9  # frames of a clip that suits a reference, and how often it has to
_SLIPS, _SLIP = 0.3, (4, 22)  # share of the examples in which something else was said for a moment, and its rows


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
        shorter = {group: found[lengths[found] <= _SHORT] for group, found in self.groups.items()}
        self.shorter = {group: found if len(found) > 2 else self.groups[group] for group, found in shorter.items()}
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
        """Return a random example. Only the home speaker speaks without a reference, which is of other clips."""
        group = self.keys[np.searchsorted(self.shares, self.rng.random(), side="right")]
        speaker, speed = group
        clips = self.chosen(self.groups[group], MOST_FRAMES, _SPEECH_SHARES)
        said, reference = self.said(clips, speed), None
        if speaker != self.home or self.rng.random() < _HOME_CLONED:
            usual = group if (speaker, "") not in self.groups else (speaker, "")
            held = (self.shorter if self.rng.random() < _SHORT_SHARE else self.groups)[usual]
            others = held[~np.isin(held, clips)]
            own = self.chosen(others if len(others) else held, MOST_REFERENCE, _REFERENCE_SHARES)
            reference = self.said(own, usual[1])
            if self.rng.random() >= _TRANSCRIBED:
                reference = Said("", reference.codes)
        one = example(self.words, said, reference)
        if self.noise and self.rng.random() < _SLIPS:
            self.slip(one, len(said.codes))
        if self.noise:
            hit = self.rng.random(one.rows.shape, np.float32) < self.noise * 2 * self.rng.random()
            hit &= one.is_code[:, None] & (one.rows < BOC)
            one.rows[hit] = self.rng.integers(0, BOC, hit.sum())
        return one

    def slip(self, one: Example, frames: int) -> None:
        """Put rows of elsewhere in the speech where others were read, so that the place is not told by them alone."""
        first, last = len(one.ids) - frames, len(one.ids) - _SLIP[1]
        if last - first < 4 * _SLIP[1]:
            return
        for _ in range(self.rng.integers(1, 4)):
            size = self.rng.integers(*_SLIP)
            place, source = self.rng.integers(first, last, 2)
            one.rows[place : place + size] = one.rows[source : source + size].copy()

    def chosen(self, held: np.ndarray, most: int, shares: tuple[float, ...]) -> list[int]:
        """Draw one clip, or several of at most `most` frames in all."""
        found, frames = [], 0
        for clip in held[self.rng.integers(0, len(held), self.rng.choice(_JOINED, p=shares))]:
            frames += int(self.starts[clip + 1] - self.starts[clip])
            if found and frames > most:
                break
            found.append(int(clip))
        return found

    def said(self, clips: list[int], speed: str) -> Said:
        """Join clips into one, with the tag of speed once."""
        texts, codes, times, frames, known = [], [], [], 0, True
        for clip in clips:
            text = self.texts[clip]
            texts.append(text.removeprefix(speed).strip() if texts else text)
            codes.append(self.codes[self.starts[clip] : self.starts[clip + 1]])
            own = self.times[self.time_starts[clip] : self.time_starts[clip + 1]]
            times.append(own + frames * FRAME_MS)
            known &= len(own) > 0
            frames += len(codes[-1])
        starts = np.concatenate(times) if known else ()
        return Said(" ".join(texts), np.concatenate(codes), starts)
