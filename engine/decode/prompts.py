"""Prompts into the cache: which positions go together in a chunk, and the chunk to the device. Knows no sampling.

A chunk holds positions of one or several sequences. How a sequence's positions are cut into chunks, and of which size
each is, its own lengths alone decide, so that its codes depend on nobody's company.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ..sequence import Sequence
from ..talker.config import ModelConfig
from ..talker.family import FAMILIES
from .kernels.prompt import MAX_ENDS, MAX_POSITIONS, QUERIES, Layout, Size, size_for


@dataclass(frozen=True)
class Piece:
    """Positions start..stop of a sequence that decodes in `row`; MAX_POSITIONS at most."""

    sequence: Sequence
    row: int
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """Whether the logits of its last position are wanted."""
        return self.stop == len(self.sequence)

    def spans(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(position, delayed codes [n, K]) of what is audio in it."""
        for at, columns in self.sequence.audio:
            first, last = max(at, self.start), min(at + len(columns), self.stop)
            if first < last:
                yield first, columns[first - at : last - at]

    def num_codes(self) -> int:
        """Positions that are audio."""
        return sum(len(columns) for _, columns in self.spans())


def pieces_of(sequence: Sequence, row: int, start: int, stop: int) -> list[Piece]:
    """Positions start..stop, cut into pieces."""
    cuts = [*range(start, stop, MAX_POSITIONS), stop]
    return [Piece(sequence, row, first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def size_of(config: ModelConfig, text: int, code: int) -> Size:
    """The size of a chunk with so many positions of each kind."""
    if FAMILIES[config.family].dual_ffn:
        return Size(size_for(text), size_for(code))
    return Size(size_for(text + code), 0)


class Chunk:
    """What pieces tell the device, on the host: see `Chunk` in prompt.cu."""

    def __init__(self, config: ModelConfig, layout: Layout, size: Size, pieces: Iterable[Piece]):
        self.size = size
        self.words = torch.zeros(layout.words, dtype=torch.int32)
        self.ids: list[int] = []  # of text, in their places
        parts = self.words[12:].split(
            [layout.places] * 2 + [layout.groups] * 2 + [MAX_ENDS] * 2 + [layout.places * layout.books]
        )
        self._row, self._position, self._first, self._count, self._end, self._end_row, codes = parts
        self._codes = codes.view(layout.places, layout.books)
        self._groups = self._ends = 0
        self._offsets = torch.arange(layout.books) * config.code_vocab
        self._row.fill_(-1)
        pieces = list(pieces)
        text = sum(piece.stop - piece.start - piece.num_codes() for piece in pieces)
        self.first_code = size.text if FAMILIES[config.family].dual_ffn else text
        self._code = self.first_code  # the next free place of each kind
        for piece in pieces:
            self._add(piece)
        self.words[9:12] = torch.tensor([self.first_code, self._groups, self._ends], dtype=torch.int32)

    def _add(self, piece: Piece):
        at, last = piece.start, -1
        began = len(self.ids), self._code
        for first, columns in piece.spans():
            last = self._add_text(piece, at, first, last)
            at, places = first + len(columns), slice(self._code, self._code + len(columns))
            self._hold(piece, places, first)
            self._codes[places.start - self.first_code : places.stop - self.first_code] = columns + self._offsets
            self._code, last = places.stop, places.stop - 1
        last = self._add_text(piece, at, piece.stop, last)
        for first, end in zip(began, (len(self.ids), self._code), strict=True):
            for place in range(first, end, QUERIES):
                self._first[self._groups], self._count[self._groups] = place, min(QUERIES, end - place)
                self._groups += 1
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
        self._position[places] = torch.arange(first, first + places.stop - places.start, dtype=torch.int32)

    def address(self, keys: torch.Tensor, values: torch.Tensor, logits: torch.Tensor) -> None:
        """Names where results go: keys, values [layers, B, kv_heads, S, D] and logits [B, K, V]."""
        told = [keys.data_ptr(), values.data_ptr(), logits.data_ptr(), keys.stride(0)]
        self.words[:8] = torch.tensor(told).view(torch.int32)
        self.words[8] = keys.shape[3]
