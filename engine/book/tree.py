"""Elements of an XHTML or HTML document, however broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from .markup import read_markup

HEADINGS = {f"h{level}": level for level in range(1, 7)}
BLOCKS = {*HEADINGS} | set(
    "p div section article aside header footer main body blockquote li ul ol dl dt dd tr td th table caption figure "
    "figcaption pre address center details summary fieldset legend form dialog hgroup menu dir option".split()
)
_VOID = set("area base br col embed hr img input link meta source track wbr".split())
_LOOK = 400  # parts of an element that decide what it is


@dataclass(slots=True, eq=False)
class Element:
    """An element, its text and its children in order. is_closed: it has its own end tag, or needs none."""

    name: str
    attributes: dict[str, str]
    parts: list[str | Element] = field(default_factory=list)
    is_closed: bool = False

    def walk(self) -> Iterator[str | tuple[Element, bool]]:
        """Yield texts, and (element, True if it starts) at both ends of each. Parts removed at a start are skipped."""
        waiting: list[str | Element | tuple[Element, bool]] = [self]
        while waiting:
            if isinstance(one := waiting.pop(), Element):
                yield one, True
                waiting.append((one, False))
                waiting += reversed(one.parts)
            else:
                yield one

    def first(self) -> list[str | Element]:
        """Return the first texts and elements below it."""
        walked = islice(self.walk(), 1, _LOOK)
        return [one if isinstance(one, str) else one[0] for one in walked if isinstance(one, str) or one[1]]

    def text(self) -> str:
        """Return how its text begins."""
        return "".join(one for one in self.first() if isinstance(one, str))[:_LOOK].strip()


def read_tree(text: str) -> Element:
    """Read a document. A paragraph without an end tag ends at the next block."""
    path, named = [Element("", {}, is_closed=True)], Counter()
    for one in read_markup(text):
        if isinstance(one, str):
            path[-1].parts.append(one)
            continue
        if one.starts:
            if path[-1].name == "p" and one.name in BLOCKS:
                named["p"] -= 1
                path.pop().is_closed = True
            is_whole = one.ends or one.name in _VOID
            path[-1].parts.append(element := Element(one.name, one.attributes, is_closed=is_whole))
            if not is_whole:
                path.append(element)
                named[one.name] += 1
        elif named[one.name]:
            while not path[-1].is_closed:  # and all that was left open inside it
                last = path.pop()
                named[last.name] -= 1
                if last.name == one.name:
                    last.is_closed = True
                    break
    return path[0]
