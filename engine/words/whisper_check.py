"""The check of a spoken chunk by what Whisper writes down. For talkers without aligning heads.

It hears the words alone, so it names what is left out, said again or added, not what is mumbled.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher

import numpy as np
import torch
import torch.nn.functional as F

from ..core.config import FRAME_SAMPLES, SAMPLE_RATE
from ..prompt.chunking import split_sentences
from ..speech.verdict import Doubt, Verdict
from .check import passages_of, starts_of
from .letters import word_starts, words_and_sentences, words_of
from .whisper import WhisperAligner

_LEAST = 8  # letters of words that Whisper would not leave out by itself
_ADDED = 3  # words at least that nobody wrote: fewer are one word heard as several
_TOGETHER, _PAUSE = 25.0, 0.4  # seconds that are heard at once, and between two texts
_DASHES = re.compile(r"[-‐‑–—…/]+|\.{2,}")
_ALIKE = 0.5  # share of the words heard, without which Whisper has not understood the chunk


class WhisperCheck:
    """The check of one chunk. Somebody who listens hears it as it comes: its doubts are named, not mended."""

    def __init__(self, whisper: WhisperAligner, text: str):
        self._whisper, self._text, self._wavs, self._is_heard = whisper, text, [torch.empty(0)], False

    def receive(self, wav: torch.Tensor) -> None:
        """Take in the next part of the chunk's audio, [n]."""
        self._wavs.append(wav)

    def listen(self, cache: object, row: int, frames: int) -> None:
        """Do nothing: Whisper hears the audio."""

    def frames_to_hear(self, codes: torch.Tensor, place: object = None) -> int:
        """Return how many of the frames so far, codes [T, K], a listener may hear."""
        self._is_heard = True
        return len(codes)

    def verdict(self, codes: torch.Tensor, ended: bool = True) -> Verdict | None:
        """Return the verdict on all codes [T, K]. None if Whisper cannot read the chunk or does not understand it.

        ended: False if speech was cut at a limit, so that words after it are not missed.
        """
        transcribed = self._whisper.transcribe(self._text, torch.cat(self._wavs))
        if transcribed is None:
            return None
        written, starts = transcribed
        frames = [min(len(codes), round(start / FRAME_SAMPLES)) for start in starts]
        return judge_written(self._text, written, [*frames, len(codes)], ended, self._is_heard)


def judge_written(
    text: str, written: str, edges: list[int], ended: bool = True, was_heard: bool = False
) -> Verdict | None:
    """Return the verdict on a chunk by what was written down. None if that is not about its text.

    edges: the first frame of each of the chunk's words, and the number of frames. was_heard: all of it stays.
    """
    words, sentences = words_and_sentences(text)
    expected, got = [*map(_plain, words)], [*map(_plain, words_of(written))]
    matcher = SequenceMatcher(None, expected, got, autojunk=False)
    if _matched(matcher) < _ALIKE * len(words):
        return None
    doubts = [
        Doubt(kind, " ".join(words[first:stop]), (first, stop), (edges[first], edges[stop]))
        for kind, first, stop in _differences(matcher, expected, got)
        if ended or kind != "missing" or stop < len(words)
    ]
    own, count = np.array(sentences), len(split_sentences(text))
    spoken = np.repeat(own, np.diff([0, *edges[1:]]))  # the sentence of each frame
    starts = starts_of(spoken, count)
    fixed = (count, edges[-1]) if was_heard else (0, 0)
    mended = () if was_heard else passages_of(doubts, own, spoken, starts, fixed)
    return Verdict("whisper", tuple(starts), mended, fixed[1], tuple(doubts) if was_heard else ())


def misheard(text: str, written: str) -> int:
    """Return how many words of a text were written down otherwise or not at all."""
    expected, got = ([*map(_plain, words_of(one))] for one in (text, written))
    return len(expected) - _matched(SequenceMatcher(None, expected, got, autojunk=False))


def misheard_in(
    texts: Sequence[str],
    takes: Iterable[Sequence[torch.Tensor]],
    hear: Callable[[Sequence[torch.Tensor], int], list[str]],
) -> list[int]:
    """Return how many words Whisper understands otherwise in each take of these texts, wavs [n] at SAMPLE_RATE.

    hear: see `transcriber`. It hears several texts at once, and all takes, which takes it no longer than one.
    """
    groups = [_together(texts, wavs) for wavs in takes]
    written = iter(hear([sound for group in groups for _, sound in group], SAMPLE_RATE))
    return [sum(misheard(text, next(written)) for text, _ in group) for group in groups]


def _together(texts: Sequence[str], wavs: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Join texts and their sounds as long as Whisper hears them at once."""
    groups: list[tuple[str, torch.Tensor]] = [("", torch.empty(0))]
    for text, wav in zip(texts, wavs, strict=True):
        before, sound = groups.pop()
        if len(sound) + len(wav) > _TOGETHER * SAMPLE_RATE:
            groups.append((before, sound))
            before, sound = "", sound[:0]
        groups.append((f"{before} {text}", F.pad(torch.cat([sound, wav]), (0, round(_PAUSE * SAMPLE_RATE)))))
    return groups


def passages_heard(text: str, heard: Sequence[str]) -> list[str]:
    """Return the passage of a text that each of these transcripts, one after another, is of. Empty if it is of none."""
    words, parts = _apart(text), [_apart(one) for one in heard]
    expected, got = [*map(_plain, words)], [_plain(word) for part in parts for word in part]
    # Of each word heard, where in the text's words a part begins with it, and where one ends.
    places: list[tuple[float, float]] = []
    for _, first, stop, start, end in SequenceMatcher(None, expected, got, autojunk=False).get_opcodes():
        size, count = stop - first, end - start
        if size > 2 * count + _ADDED:  # words that nobody read, such as front matter, and some that were misheard
            places += [(stop - count + number, first + number + 1) for number in range(count)]
        else:
            step = size / max(1, count)
            places += [(first + step * number, first + step * (number + 1)) for number in range(count)]
    starts = word_starts(words, text)  # in characters
    passages, at = [], 0
    for part, written in zip(parts, heard, strict=True):
        own = places[at : at + len(part)]
        at += len(part)
        passage = text[starts[round(own[0][0])] : starts[round(own[-1][1])]].strip() if own else ""
        passages.append(passage if passage and _is_of(passage, written) and _is_of(written, passage) else "")
    return passages


def _apart(text: str) -> list[str]:
    """Return the words of a text, also those that dashes join: a reader pauses there, and Whisper writes spaces."""
    return [part for word in words_of(text) for part in _DASHES.split(word) if any(map(str.isalnum, part))]


def _is_of(text: str, other: str) -> bool:
    return misheard(text, other) <= _ALIKE * len(words_of(text))


def _matched(matcher: SequenceMatcher) -> int:
    return sum(block.size for block in matcher.get_matching_blocks())


def _differences(matcher: SequenceMatcher, expected: list[str], got: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, first word, the one after the last) of what was written down otherwise."""
    for _, first, stop, start, end in matcher.get_opcodes():
        more, own, other = (end - start) - (stop - first), *map(_letters, (expected[first:stop], got[start:end]))
        if own - other >= max(_LEAST, own / 2):  # numbers are written in digits, compounds apart
            yield "missing", first, stop
        elif more >= 2 and other - own > other / 2:
            place = _before(expected[:stop], got[start:end]) or _before(expected[: stop + end - start], got[start:end])
            if place:
                yield "again", *place
            elif more >= _ADDED:
                yield "added", max(0, first - 1), max(1, first)


def _letters(words: list[str]) -> int:
    return sum(map(len, words))


def _before(words: list[str], got: list[str]) -> tuple[int, int] | None:
    """Return the last words that end a text, if the words written end like this."""
    size = len(got)
    return (len(words) - size, len(words)) if size and words[-size:] == got else None


def _plain(word: str) -> str:
    """Return the letters and digits of a word, without case, marks and signs."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", word).casefold()))
