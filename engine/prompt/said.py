"""A written text beside the text that is said in its place."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Respelling:
    """Text that is said in place of text[start:stop]."""

    start: int
    stop: int
    spelling: str


@dataclass(frozen=True)
class SaidText:
    """A text as written, and its respellings in order."""

    written: str
    respellings: tuple[Respelling, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        """The text that is said."""
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        at = 0
        for one in self.respellings:
            yield self.written[at : one.start]
            yield one.spelling
            at = one.stop
        yield self.written[at:]

    @functools.cached_property
    def _edges(self) -> tuple[list[int], list[int]]:
        """Both edges of each respelling, as written and as said."""
        written, spoken, by = [0], [0], 0
        for one in self.respellings:
            written += [one.start, one.stop]
            spoken += [one.start + by, one.start + by + len(one.spelling)]
            by += len(one.spelling) - (one.stop - one.start)
        return [*written, len(self.written)], [*spoken, len(self.written) + by]

    def as_written(self, start: int, stop: int) -> tuple[int, int]:
        """Return the characters of the written text that text[start:stop] says. A respelling is shared out evenly."""
        if not self.respellings:
            return start, stop
        written, spoken = self._edges
        return int(_moved(start, spoken, written)), -int(-_moved(stop, spoken, written) // 1)

    def part(self, start: int, stop: int) -> str:
        """Return what is said of written[start:stop]."""
        written, spoken = self._edges
        return self.text[int(_moved(start, written, spoken)) : -int(-_moved(stop, written, spoken) // 1)]


def _moved(at: int, edges: list[int], others: list[int]) -> float:
    """Return the place among the other edges that corresponds to one among these. Negative places stay."""
    number = min(max(1, bisect.bisect_right(edges, at)), len(edges) - 1)
    start, stop = edges[number - 1 : number + 1]
    other, end = others[number - 1 : number + 1]
    if at <= start or stop == start:
        return other + min(0, at - start)
    return other + (at - start) * (end - other) / (stop - start)
