"""The check of a spoken chunk: is each word said once? By the talker's attention, on a path not forced forward.

A step back on the path is a repeat, and words that it passes over are missing. `benchmarks/check.py` measures how much
of what Whisper hears is found so.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..core.config import FRAME_RATE
from ..core.sequence import Sequence as Prompt
from ..prompt.builder import PromptBuilder
from ..prompt.chunking import LETTER_SECONDS, estimate_seconds, split_sentences
from ..prompt.titles import is_title
from ..speech.verdict import Doubt, Passage, Verdict
from ..talker import Talker
from .attention import (
    Head,
    KeptQueries,
    Listening,
    ReadWords,
    attention_to_words,
    by_layer,
    has_room,
    mean_attention,
    read_words,
)
from .path import changes, free_path

_LEAST = 0.6  # mean attention to the words of the path, without which the path says nothing
_SKIP = 1.0  # what leaving out a word costs the path, and beside it each of its letters, in nats
_SKIP_LETTER = 1.0
_GONE_BACK = 3  # frames on the words gone back to, at least; less is a flicker at a pause
# Of 1 to 4 units: letters from which they can be judged, and the share of the chunk's frames per letter below which
# they were swallowed. Short words may share a frame.
_SWALLOWED = ((4, 0.15), (6, 0.3), (6, 0.3), (6, 0.3))
_ENDS = 0.5  # the same share for the first and the last of them
_SMOOTH = 9  # frames over which attention is averaged
_LOST = 0.8, 5  # attention below which, for so many frames, the talker has lost the words beside other doubts
_UNSURE = 0.6, 22  # and where there are none
_COPY = 9  # frames with equal codes that are not by chance; pauses repeat up to eight
_NEAR = FRAME_RATE // 2  # frames
_EVERY = FRAME_RATE  # frames between two checks while somebody listens
_SURE = FRAME_RATE // 2  # frames into the next sentence after which a sentence is over
_SOON = 0.6  # share of the first sentence's expected length that is heard unchecked; most speakers take longer
_LONG = FRAME_RATE * 2.5  # frames on one word beyond its length, in which something else is said

_Finding = tuple[str, int, int, int, int]  # kind; first unit and the one after the last; the same of frames


@dataclass(frozen=True)
class HeardSpeech:
    """The part of a chunk that a listener has.

    fixed: sentences that may be heard, and their frames. frames: those heard; a sentence that begins in them stays too.
    """

    fixed: tuple[int, int] = (0, 0)
    frames: int = 0


class ChunkCheck:
    """The check of one chunk, also while it is spoken to a listener.

    Its attention comes from the queries kept while it was spoken, if `listen` saw them. Else the talker reads the
    prompt and the codes again. After a voice it may lose the words of good speech: what is in doubt then is read once
    more without the voice, and that decides.

    A listener may hear the first sentence as it comes, with titles before it, and each later one once it is checked.
    Near the end of the first one only what is known to be in it, so that nothing is heard that is spoken again.
    """

    def __init__(self, talker: Talker, builder: PromptBuilder, heads: Sequence[Head], prompt: Prompt):
        self._talker, self._builder, self._heads, self._chunk = talker, builder, heads, read_words(builder, prompt)
        self._listening = Listening(self._chunk, heads) if self._chunk else None
        self._checked = 0  # frames
        self._fixed = (0, 0)  # sentences that a listener may hear, and their frames
        self._cleared = 0  # frames that may be heard
        self._sentences = np.array(self._chunk.sentences if self._chunk else [])

    @functools.cached_property
    def _opening(self) -> tuple[int, int]:
        """The number of sentences that are heard as they come, and the frames during which nothing is checked."""
        sentences = split_sentences(self._chunk.prompt.text) if self._chunk else []
        first = 1 + sum(1 for _ in itertools.takewhile(is_title, sentences[:2]))
        return first, round(_SOON * sum(map(estimate_seconds, sentences[:first])) * FRAME_RATE)

    def listen(self, cache: KeptQueries, row: int, frames: int) -> None:
        """Take in the attention of the whole chunk, which must still be in a row of the cache."""
        if self._listening is not None:
            self._listening.listen(cache, row, frames)

    def frames_to_hear(self, codes: torch.Tensor, place: tuple[KeptQueries, int] | None = None) -> int:
        """Return how many of the frames so far, codes [T, K], a listener may hear.

        place: the cache that they are in, and its row.
        """
        self._cleared = max(self._cleared, self._clear(codes, place))
        return self._cleared

    def _clear(self, codes: torch.Tensor, place: tuple[KeptQueries, int] | None) -> int:
        count, (first, soon) = len(codes), self._opening
        if self._chunk is None or len(set(self._sentences)) <= first or count < soon:
            return count
        if count >= self._checked + (_EVERY if self._fixed[0] else _SURE):
            self._checked = count
            if place is not None and self._listening is not None:
                self._listening.listen(*place, count)
            cleared = None
            for chunk, attention in self._attention(codes):
                cleared = frames_cleared(chunk.forms, self._sentences, *attention, first)
                if cleared is not None and not cleared[2]:
                    break
            if cleared is None:
                return count
            self._fixed = max(self._fixed, cleared[:2])
        return self._fixed[1] if self._fixed[0] else min(count, self._checked - _SURE)

    def verdict(self, codes: torch.Tensor, ended: bool = True) -> Verdict | None:
        """Return the verdict on all codes [T, K]. None if the words cannot be followed.

        ended: False if speech was cut at a limit, so that words after it are not missed.
        """
        if self._chunk is None or len(codes) < len(self._chunk.words):
            return None
        copies = copied(codes.numpy())
        heard, verdict = HeardSpeech(self._fixed, self._cleared), None
        for chunk, attention in self._attention(codes):
            verdict = judge_words(chunk.words, self._sentences, *attention, copies, heard, ended, chunk.forms)
            if verdict is not None and not verdict.doubts:
                break
        return verdict

    def _attention(self, codes: torch.Tensor) -> Iterator[tuple[ReadWords, tuple[np.ndarray, np.ndarray]]]:
        """Yield the chunk, the first word of each unit [U], and their attention [T, U]; after a voice also without it.

        Words that share their tokens are one unit.
        """
        chunk, listening = self._chunk, self._listening
        assert chunk is not None and listening is not None
        if listening.frames == len(codes):
            yield chunk, _units(chunk, listening.mean())
        elif has_room(self._talker, chunk, codes):
            yield chunk, self._read(chunk, codes)
        if chunk.prompt.voice is not None:
            plain = read_words(self._builder, self._builder.build(chunk.prompt.text))
            if plain is not None and has_room(self._talker, plain, codes):
                yield plain, self._read(plain, codes)

    def _read(self, chunk: ReadWords, codes: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        maps = attention_to_words(self._talker, chunk, codes, by_layer(self._heads))
        return _units(chunk, mean_attention(maps, self._heads).cpu())


def _units(chunk: ReadWords, attention: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Join the words of attention [T, W] that share their tokens."""
    apart = (chunk.shares[:, 1:] != chunk.shares[:, :-1]).any(0).numpy()
    firsts = np.flatnonzero(np.concatenate([[True], apart]))
    return firsts, np.add.reduceat(attention.numpy(), firsts, axis=1)


def judge_words(
    words: list[str],
    sentences: np.ndarray,
    firsts: np.ndarray,
    attention: np.ndarray,
    copies: Iterable[tuple[int, int, int]] = (),
    heard: HeardSpeech = HeardSpeech(),
    ended: bool = True,
    forms: list[str] | None = None,
) -> Verdict | None:
    """Return the verdict by attention [T, U] to units of words. None if it does not follow them.

    sentences: [W], the number of each word's sentence. firsts: [U], the first word of each unit. copies: see `copied`.
    heard: sentences in it stay. ended: see `ChunkCheck.verdict`. forms: how the words are said.
    """
    if attention.max(1).mean() < _LEAST:  # spares the path
        return None
    edges = [*firsts.tolist(), len(words)]
    letters = np.add.reduceat([_letters(word) for word in forms or words], firsts)
    path = free_path(attention, _SKIP + _SKIP_LETTER * letters, is_whole=ended)
    sure = attention[np.arange(len(path)), path]
    if sure.mean() < _LEAST:
        return None
    findings = _with_lost(_with_copies(_find(path, letters), copies, path), sure, path)
    if not ended:
        findings = [one for one in findings if one[2] < len(letters) or one[0] not in ("missing", "cut")]
    doubts = [
        Doubt(kind, " ".join(words[edges[first] : edges[stop]]), (edges[first], edges[stop]), (start, end))
        for kind, first, stop, start, end in findings
    ]
    frame_sentences = sentences[firsts][path]  # the sentence of each frame
    starts = starts_of(frame_sentences, int(sentences[-1]) + 1)
    fixed = heard.fixed
    starts[: fixed[0]] = [min(start, fixed[1]) for start in starts[: fixed[0]]]
    if (begun := int(np.searchsorted(starts, heard.frames))) > fixed[0]:
        fixed = begun, [*starts, len(path)][begun]
    stays = tuple(doubt for doubt in doubts if sentences[doubt.words[1] - 1] < fixed[0])
    mended = [doubt for doubt in doubts if doubt not in stays]
    passages = passages_of(mended, sentences, frame_sentences, starts, fixed)
    return Verdict("attention", tuple(starts), passages, fixed[1], stays)


def frames_cleared(
    words: list[str], sentences: np.ndarray, firsts: np.ndarray, attention: np.ndarray, first: int = 1
) -> tuple[int, int, bool] | None:
    """Return the sentences of unfinished speech that are said and right, their frames, and if a doubt ends them.

    first: how many are heard in any case. (0, 0) during these. None if attention does not follow the words.
    """
    if attention.max(1).mean() < _LEAST:
        return None
    letters = np.add.reduceat([_letters(word) for word in words], firsts)
    path = free_path(attention, _SKIP + _SKIP_LETTER * letters, is_whole=False)
    if attention[np.arange(len(path)), path].mean() < _LEAST:
        return None
    own = sentences[firsts]  # the sentence of each unit
    starts = starts_of(own[path], int(sentences[-1]) + 1)
    finished = int(np.searchsorted(starts, len(path) - _SURE, side="right")) - 1  # sentences that are over
    if finished < first:
        return 0, 0, False
    findings = _find(path, letters[: path.max() + 1])
    cleared = max(first, min([finished, *(int(own[unit]) for _, unit, *_ in findings)]))
    return cleared, starts[cleared], cleared < finished


def starts_of(frame_sentences: np.ndarray, count: int) -> list[int]:
    """Return the first frame of each sentence, by the sentence of each frame. [T] -> count."""
    return np.searchsorted(np.maximum.accumulate(frame_sentences), np.arange(count)).tolist()


def _find(path: np.ndarray, letters: np.ndarray) -> list[_Finding]:
    """Return all doubts of a path."""
    frames = np.bincount(path, minlength=len(letters))
    pace = float(np.median((frames / letters)[frames > 0]))  # frames per letter
    kinds = _again(path), _swallowed(path, letters, frames, pace), _added(path, letters, pace)
    return sorted(itertools.chain(*kinds), key=lambda one: one[1:])


@functools.lru_cache(4096)
def _letters(word: str) -> float:
    """Return about how many letters of English take as long as a word."""
    return max(1.0, estimate_seconds("".join(filter(str.isalnum, word))) / LETTER_SECONDS)


def copied(codes: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (start, stop, lag) of frames of codes [T, K] that equal those `lag` frames before, in two codebooks."""
    frames = (codes[:, 0].astype(int) << 16 | codes[:, 1]).tolist()
    seen: dict[tuple[int, ...], int] = {}
    repeats: list[tuple[int, int, int]] = []
    for start in range(len(frames) - _COPY + 1):
        window = tuple(frames[start : start + _COPY])
        before = seen.setdefault(window, start)
        # A pause may repeat its codes.
        if start - before < _COPY or len({frame >> 16 for frame in window}) < _COPY // 2:
            continue
        if repeats and repeats[-1][1] >= start and repeats[-1][2] == start - before:
            repeats[-1] = repeats[-1][0], start + _COPY, start - before
        else:
            repeats.append((start, start + _COPY, start - before))
    return repeats


def _with_copies(findings: list[_Finding], copies: Iterable[tuple[int, int, int]], path: np.ndarray) -> list[_Finding]:
    """Add repeats that show in the codes alone, in place of those that the path notices late or beside them."""
    for start, stop, lag in copies:
        units = path[start - lag : stop - lag]
        findings = [one for one in findings if one[4] < start - _NEAR or one[3] > stop + lag or one[0] == "added"]
        findings.append(("again", int(units.min()), int(units.max()) + 1, start, stop))
    return sorted(findings, key=lambda one: one[1:])


def _lost(smooth: np.ndarray, least: float, size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of at least `size` frames in which the attention to the words [T] is below `least`."""
    return [(start, stop) for start, stop in _spans(smooth < least) if stop - start >= size]


def _spans(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the runs of True in a mask [n]."""
    edges = changes(np.concatenate([[False], mask, [False]])).tolist()[1:]
    return ((start - 1, stop - 1) for start, stop in zip(edges[::2], edges[1::2], strict=True))


def _with_lost(findings: list[_Finding], sure: np.ndarray, path: np.ndarray) -> list[_Finding]:
    """Join the doubts that arise where the talker loses the words: it finds out late what was said there."""
    smooth = np.convolve(np.pad(sure, _SMOOTH // 2, mode="edge"), np.full(_SMOOTH, 1 / _SMOOTH), "valid")
    for start, stop in _lost(smooth, *_LOST):
        own = [one for one in findings if one[4] > start - _NEAR and one[3] < stop + 2 * _NEAR]
        if own:
            kind, *_ = max(own, key=lambda one: one[2] - one[1])
            words = min(one[1] for one in own), max(one[2] for one in own)
            frames = min(start, *(one[3] for one in own)), max(one[4] for one in own)
            findings = [*(one for one in findings if one not in own), (kind, *words, *frames)]
    for start, stop in _lost(smooth, *_UNSURE):
        if not any(one[4] > start - 2 * _NEAR and one[3] < stop + 2 * _NEAR for one in findings):
            units = path[start:stop]
            findings = [*findings, ("unsure", int(units.min()), int(units.max()) + 1, start, stop)]
    return sorted(findings, key=lambda one: one[1:])


def _again(path: np.ndarray) -> Iterator[_Finding]:
    """Find units that the path goes back to and says again."""
    for place in (np.flatnonzero(np.diff(path) < 0) + 1).tolist():
        rest = path[place:]
        on = (rest > path[place - 1]) | (np.diff(rest, prepend=rest[0]) < 0)  # new words, or back once more
        size = int(np.argmax(on)) if on.any() else len(rest)
        if size >= _GONE_BACK:
            yield "again", int(rest[0]), int(rest[:size].max()) + 1, place, place + size


def _swallowed(path: np.ndarray, letters: np.ndarray, frames: np.ndarray, pace: float) -> Iterator[_Finding]:
    """Find units that no frame says, and runs of units with too few frames for their letters."""
    bad = np.zeros(len(letters), bool)
    for size, (least, share) in enumerate(_SWALLOWED, 1):
        if size <= len(letters):
            length, taken = (np.convolve(values, np.ones(size), "valid") for values in (letters, frames))
            for first in np.flatnonzero((length >= least) & (taken < share * pace * length)).tolist():
                bad[first : first + size] = True
    reached = np.maximum.accumulate(path)
    is_short = frames < _ENDS * pace * letters
    for first, stop in _spans(bad):
        inside = np.flatnonzero(is_short[first:stop])  # at the ends of a run, only words that are short themselves
        first, stop = first + int(inside[0]), first + int(inside[-1]) + 1
        start, end = np.searchsorted(reached, (first, stop)).tolist()
        yield "cut" if frames[first:stop].any() else "missing", first, stop, start, end


def _added(path: np.ndarray, letters: np.ndarray, pace: float) -> Iterator[_Finding]:
    """Find runs of frames on one unit in which something else must be said."""
    starts = changes(path).tolist()
    for start, stop in zip(starts, [*starts[1:], len(path)], strict=True):
        if stop - start > pace * letters[path[start]] + _LONG:
            yield "added", int(path[start]), int(path[start]) + 1, start, stop


def passages_of(
    doubts: list[Doubt], sentences: np.ndarray, frame_sentences: np.ndarray, starts: list[int], fixed: tuple[int, int]
) -> tuple[Passage, ...]:
    """Return the passages that hold all doubts. frame_sentences: each frame's. fixed: see `judge_words`."""
    joined: list[tuple[int, int, list[Doubt]]] = []  # first and last sentence
    for doubt in doubts:
        first, last = max(fixed[0], int(sentences[doubt.words[0]])), int(sentences[doubt.words[1] - 1])
        if doubt.kind == "again":
            last = max(last, int(frame_sentences[doubt.frames[0] - 1]))
        own = [doubt]
        while joined and first <= joined[-1][1]:
            before = joined.pop()
            first, last, own = min(first, before[0]), max(last, before[1]), [*before[2], *own]
        joined.append((first, last, own))
    after = np.minimum.accumulate(frame_sentences[::-1])[::-1]  # the first sentence that follows each frame
    passages = []
    for first, last, own in joined:
        start = max(starts[first], fixed[1])
        passages.append(
            Passage((first, last + 1), (start, max(start, int(np.searchsorted(after, last + 1)))), tuple(own))
        )
    return tuple(passages)
