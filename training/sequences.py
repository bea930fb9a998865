"""Packed training sequences of spoken lines, in the exact form of engine/prompt/builder.py.

<|tts|> [<|ref_text|> TRANSCRIPT] [<|ref_audio|> ROWS] <|text|> TEXT <|audio|> ROWS
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from .talker import CODEBOOKS, Batch

BOC, EOC = 1024, 1025
FILLER = 0  # the id under a reference's rows
MOST_FRAMES, MOST_REFERENCE = 780, 500  # longest speech and reference, 25 frames a second
LONGEST = 2816  # positions of a sequence, texts included
MOST_LEARNED = 0.65  # of a batch's positions; on average it is 0.54
FRAME_MS = 40
NOT_SPOKEN, NO_WORD = -1, -2
_TAG, _SPACES = re.compile(r"(<\|[^|]*\|>)"), re.compile(r"(\s+)")


@dataclass(frozen=True)
class Said:
    """A text, its codes [T, K], and the millisecond at which each of its words begins: empty if unknown."""

    text: str
    codes: np.ndarray
    starts: np.ndarray | tuple[int, ...] = ()

    def word_of_rows(self, count: int) -> np.ndarray:
        """Return [T + K - 1]: the word that each row says in its first codebook, of `count` words in the text."""
        rows = len(self.codes) + CODEBOOKS - 1
        if len(self.starts) != count:
            return np.full(rows, NOT_SPOKEN, np.int16)
        frames = np.minimum(np.arange(rows), len(self.codes) - 1)
        heard = np.searchsorted(self.starts, (frames + 1) * FRAME_MS, side="right") - 1
        return np.maximum(heard, 0).astype(np.int16)


@dataclass(frozen=True)
class Example:
    """One sequence before packing.

    ids [P], rows [P, K] where is_code, targets [P, K] (-1: not learned); spoken [P]: number of the word that the next
    row says (-1: unknown); word [P]: number of the text's word at a position (-2: none). A transcript's words are
    numbered before the text's.
    """

    ids: np.ndarray
    rows: np.ndarray
    is_code: np.ndarray
    targets: np.ndarray
    spoken: np.ndarray
    word: np.ndarray


def delayed(codes: np.ndarray) -> np.ndarray:
    """codes [T, K] -> rows [T + K - 1, K], like engine.codes.apply_v3."""
    frames, books = codes.shape
    rows = np.full((frames + books - 1, books), BOC, np.int16)
    for book in range(books):
        rows[book : book + frames, book] = codes[:, book]
        rows[book + frames :, book] = EOC
    return rows


class Words:
    """Tokenizes text: tags and commands as their own tokens, all else by the tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, int]:
        """Return (ids, word number of each, number of words). White space and tags end a word; tags are none."""
        ids: list[int] = []
        word: list[int] = []
        count = 0
        for piece in filter(None, _TAG.split(text)):
            if _TAG.fullmatch(piece):
                ids.append(self.token(piece))
                word.append(NO_WORD)
                continue
            number: list[int] = []  # word number of each character
            for group in _SPACES.split(piece):
                number += [NO_WORD if not group or group.isspace() else count] * len(group)
                count += bool(group) and not group.isspace()
            encoded = self._tokenizer.encode(piece, add_special_tokens=False)
            ids += encoded.ids
            word += [number[stop - 1] for _, stop in encoded.offsets]
        return np.array(ids, np.int16), np.array(word, np.int16), count

    def token(self, name: str) -> int:
        return self._tokenizer.token_to_id(name)


@dataclass(frozen=True)
class _Part:
    """Consecutive ids [n] or rows [n, K]. learned: True if the rows are; number: word number of each."""

    held: np.ndarray
    number: np.ndarray
    learned: bool = False


def example(words: Words, said: Said, reference: Said | None = None) -> Example:
    """Return the sequence that teaches `said` in the voice of `reference`. An empty reference text is left out.

    With a transcript the reference is learned too: it is speech to a text like any other.
    """

    def command(name: str) -> _Part:
        return _Part(np.array([words.token(name)], np.int16), np.array([NO_WORD], np.int16))

    parts, before = [command("<|tts|>")], 0
    if reference is not None:
        number = np.full(len(reference.codes) + CODEBOOKS - 1, NOT_SPOKEN, np.int16)
        if reference.text:
            ids, word, before = words(reference.text)
            number = reference.word_of_rows(before)
            parts += [command("<|ref_text|>"), _Part(ids, word)]
        parts += [command("<|ref_audio|>"), _Part(delayed(reference.codes), number, bool(reference.text))]
    ids, word, count = words(said.text)
    rows = said.word_of_rows(count)
    parts += [command("<|text|>"), _Part(ids, np.where(word >= 0, word + before, word)), command("<|audio|>")]
    parts.append(_Part(delayed(said.codes), np.where(rows >= 0, rows + before, rows), True))
    return _joined(parts)


def _joined(parts: list[_Part]) -> Example:
    length = sum(len(part.held) for part in parts) - 1  # the last row is learned and never read
    ids, rows = np.full(length + 1, FILLER, np.int16), np.zeros((length + 1, CODEBOOKS), np.int16)
    is_code = np.zeros(length + 1, bool)
    targets = np.full((length, CODEBOOKS), -1, np.int16)
    spoken, word = np.full(length, NOT_SPOKEN, np.int16), np.full(length, NO_WORD, np.int16)
    start = 0
    for part in parts:
        stop = start + len(part.held)
        if part.held.ndim == 1:
            ids[start:stop], word[start:stop] = part.held, part.number
        else:
            rows[start:stop], is_code[start:stop] = part.held, True
            spoken[start - 1 : stop - 1] = part.number
            if part.learned:  # the engine sets BOC, so it need not be learned
                targets[start - 1 : stop - 1] = np.where(part.held == BOC, -1, part.held)
        start = stop
    return Example(ids[:length], rows[:length], is_code[:length], targets, spoken, word)


def pack(examples: list[Example], positions: int, sequences: int) -> Batch:
    """Pack examples end to end, padded to fixed sizes so that every batch has one shape."""
    count = sum(len(example.ids) for example in examples)
    assert count <= positions and len(examples) < sequences
    batch = {name: np.full((positions, *shape), value, kind) for name, (shape, value, kind) in _EMPTY.items()}
    ends = [0]
    for one in examples:
        start, stop = ends[-1], ends[-1] + len(one.ids)
        for name in ("ids", "is_code", "targets", "spoken", "word"):
            batch[name][start:stop] = getattr(one, name)
        batch["codes"][start:stop], batch["place"][start:stop] = one.rows, np.arange(stop - start)
        ends.append(stop)
    while ends[-1] < positions:  # the padding counts as sequences too
        ends.append(min(ends[-1] + LONGEST, positions))
    batch["ends"] = np.array(ends + [positions] * (sequences + 1 - len(ends)), np.int32)
    found = (batch["targets"] >= 0).any(1).nonzero()[0][: int(positions * MOST_LEARNED)]
    learned = np.zeros(int(positions * MOST_LEARNED), np.int64)  # position 0 is <|tts|>, which learns nothing
    learned[: len(found)] = found
    batch["learned"], batch["targets"] = learned, batch["targets"][learned]
    return Batch(**{name: torch.from_numpy(array) for name, array in batch.items()}, longest=LONGEST)


_EMPTY = {
    "ids": ((), 0, np.int16),
    "codes": ((CODEBOOKS,), 0, np.int16),
    "is_code": ((), False, bool),
    "targets": ((CODEBOOKS,), -1, np.int16),
    "spoken": ((), NOT_SPOKEN, np.int16),
    "word": ((), NO_WORD, np.int16),
    "place": ((), 0, np.int32),
}
