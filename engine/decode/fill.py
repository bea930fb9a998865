"""Fills on the host: pieces of prompts, their packing, and the int32 words that the kernels read. Launches nothing.

A fill is a launch of a fixed size, which may hold several sequences. A sequence's own lengths alone decide how it is
cut. Its pieces share fills only as far as that does not change their bits, so its codes do not depend on the sequences
beside it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..core.sequence import Sequence
from ..device.memory import send
from ..talker import Talker
from ..talker.config import ModelConfig
from ..talker.family import FAMILIES
from ..talker.prefill import look_up
from .kernels.prompt import MAX_ENDS, MAX_POSITIONS, QUERIES, Layout, PromptKernel, Sharing, Size, size_for
from .state import DecodeState


@dataclass(frozen=True)
class Piece:
    """Positions start..stop of a sequence that decodes in `row`."""

    sequence: Sequence
    row: int
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """True if the logits of its last position are needed."""
        return self.stop == len(self.sequence)

    def spans(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (position, delayed codes [n, K]) of its audio."""
        for at, columns in self.sequence.audio:
            first, last = max(at, self.start), min(at + len(columns), self.stop)
            if first < last:
                yield first, columns[first - at : last - at]

    def num_codes(self) -> int:
        """Number of positions that are audio."""
        return sum(len(columns) for _, columns in self.spans())

    def counts(self, config: ModelConfig) -> tuple[int, int]:
        """Number of places of each kind, see Size."""
        positions, codes = self.stop - self.start, self.num_codes()
        return (positions - codes, codes) if FAMILIES[config.family].dual_ffn else (positions, 0)

    def cut(self) -> list[Piece]:
        """Return consecutive pieces that each fit into a fill."""
        cuts = [*range(self.start, self.stop, MAX_POSITIONS), self.stop]
        return [replace(self, start=start, stop=stop) for start, stop in itertools.pairwise(cuts)]


def pack(config: ModelConfig, pieces: Iterable[Piece], sharing: Sharing) -> Iterator[tuple[Size, list[Piece]]]:
    """Yield fills that hold the pieces: long ones are cut, and each sequence's come in order.

    Pieces share a fill as far as `sharing` allows and while they fit into one.
    """
    for wave in itertools.zip_longest(*(piece.cut() for piece in pieces)):
        filling: dict[Size | None, list[Piece]] = {}
        for piece in filter(None, wave):
            size = None if sharing is Sharing.ANY_SIZES else _size_of(config, [piece])
            held = filling.setdefault(size, [])
            if held and (sharing is Sharing.NONE or not _fits(config, size, [*held, piece])):
                yield _size_of(config, held), held
                held = filling[size] = []
            held.append(piece)
        for held in filling.values():
            yield _size_of(config, held), held


def _counts(config: ModelConfig, pieces: list[Piece]) -> list[int]:
    return [sum(counts) for counts in zip(*(piece.counts(config) for piece in pieces), strict=True)]


def _size_of(config: ModelConfig, pieces: list[Piece]) -> Size:
    return Size(*map(size_for, _counts(config, pieces)))


def _fits(config: ModelConfig, size: Size | None, pieces: list[Piece]) -> bool:
    """True if a fill of the size, or of the largest one, can hold them."""
    counts = _counts(config, pieces)
    fits = sum(counts) <= MAX_POSITIONS if size is None else all(map(operator.le, counts, size))
    return fits and len(pieces) <= MAX_ENDS


class Fill:
    """The words of a fill on the host, `Fill` in prompt.cu. Written through NumPy: its calls cost less than torch's."""

    def __init__(self, config: ModelConfig, layout: Layout, size: Size, pieces: list[Piece]):
        self.size = size
        self.words = torch.zeros(layout.words, dtype=torch.int32)
        self.ids: list[int] = []  # of text, in their places
        self._head, rest = np.split(self.words.numpy(), [12])
        lengths = [layout.places] * 2 + [layout.groups] * 2 + [MAX_ENDS] * 2
        parts = np.split(rest, list(itertools.accumulate(lengths)))
        self._row, self._position, self._first, self._count, self._end, self._end_row, codes = parts
        self._codes = codes.reshape(layout.places, layout.books)
        self._groups = self._ends = 0
        self._offsets = np.arange(layout.books) * config.code_vocab
        self._row[:] = -1
        text = sum(piece.stop - piece.start - piece.num_codes() for piece in pieces)
        self.first_code = size.text if FAMILIES[config.family].dual_ffn else text
        self._code = self.first_code  # the next free place for codes
        for piece in pieces:
            self._add(piece)
        self._head[9:] = self.first_code, self._groups, self._ends

    def _add(self, piece: Piece):
        at, last = piece.start, -1
        began = len(self.ids), self._code
        for first, columns in piece.spans():
            last = self._add_text(piece, at, first, last)
            at, places = first + len(columns), slice(self._code, self._code + len(columns))
            self._hold(piece, places, first)
            codes = slice(places.start - self.first_code, places.stop - self.first_code)
            self._codes[codes] = columns.numpy() + self._offsets
            self._code, last = places.stop, places.stop - 1
        last = self._add_text(piece, at, piece.stop, last)
        for first, end in zip(began, (len(self.ids), self._code), strict=True):
            places = np.arange(first, end, QUERIES)
            groups = slice(self._groups, self._groups + len(places))
            self._first[groups], self._count[groups] = places, np.minimum(end - places, QUERIES)
            self._groups = groups.stop
        if piece.ends:
            self._end[self._ends], self._end_row[self._ends] = last, piece.row
            self._ends += 1

    def _add_text(self, piece: Piece, start: int, stop: int, last: int) -> int:
        if start >= stop:
            return last
        places = slice(len(self.ids), len(self.ids) + stop - start)
        self._hold(piece, places, start)
        self.ids += piece.sequence.ids[start:stop]
        return places.stop - 1

    def _hold(self, piece: Piece, places: slice, first: int):
        self._row[places] = piece.row
        self._position[places] = np.arange(first, first + places.stop - places.start)

    def upload(self, talker: Talker, kernel: PromptKernel, state: DecodeState) -> None:
        """Copy the words, with the state's addresses, and the text's embeddings into the kernel's scratch."""
        keys, values = state.cache.keys, state.cache.values
        addresses = [keys.data_ptr(), values.data_ptr(), state.logits.data_ptr(), keys.stride(0)]
        self._head[:8] = np.array(addresses, dtype=np.int64).view(np.int32)
        self._head[8] = state.max_seq_len
        send(self.words, kernel.scratch["fill"])
        if self.ids:
            text = look_up(talker.embed_text, self.ids, state.device)
            kernel.scratch["text"][: len(text)].copy_(text, non_blocking=True)


def full_fill(config: ModelConfig, layout: Layout, size: Size, state: DecodeState) -> Fill:
    """Return a fill of one sequence in row 0, as full as the size and the row's slots allow."""
    text = min(size.text, state.max_seq_len)
    code = min(size.code, state.max_seq_len - text)
    ids = [place % config.text_vocab for place in range(text + code)]
    columns = torch.arange(code * config.codebooks).view(code, config.codebooks) % config.code_vocab
    piece = Piece(Sequence(ids, ((text, columns),) if code else ()), 0, 0, text + code)
    return Fill(config, layout, size, [piece])
