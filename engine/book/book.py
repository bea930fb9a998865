"""A book as it is to be read aloud: chapters of turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..prompt.script import Turn, read_pauses
from ..prompt.tags import is_spoken

BREAK = "[pause 1.5]"  # where a scene ends, and after a heading
_NOTE_MARK = re.compile(r"\[\d{1,3}\]")
_LONGEST_TITLE = 80


@dataclass(frozen=True)
class Paragraph:
    """A paragraph's text, or nothing where a scene ends."""

    text: str
    is_heading: bool = False


@dataclass(frozen=True)
class Chapter:
    """A chapter's title and what is said in it, a turn a paragraph, its heading the first."""

    title: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Book:
    """Chapters in order, each with something to say.

    left_out: what is not read aloud, a few words each. head: voices that a script names, speaker -> what stands there.
    """

    title: str
    chapters: tuple[Chapter, ...]
    author: str = ""
    left_out: tuple[str, ...] = ()
    head: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def speakers(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(turn.speaker for chapter in self.chapters for turn in chapter.turns))


def title_of(text: str) -> str:
    """A heading as a title: one line, not overlong."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TITLE else line[:_LONGEST_TITLE].rsplit(" ", 1)[0] + "..."


def make_chapters(title: str, parts: Iterable[tuple[str, Sequence[Paragraph]]]) -> tuple[Chapter, ...]:
    """(title, paragraphs) of each part as chapters. One that is nothing but its heading goes with the next.

    title: the book's, for parts that have none.
    """
    made: list[Chapter] = []
    waiting: list[Turn] = []  # headings without a text
    for name, paragraphs in parts:
        turns = narrated(paragraphs)
        if not turns:
            continue
        waiting += turns
        if any(not paragraph.is_heading and is_spoken(paragraph.text) for paragraph in paragraphs):
            made.append(Chapter(title_of(name) or title, tuple(waiting)))
            waiting = []
    if waiting and made:
        made[-1] = Chapter(made[-1].title, (*made[-1].turns, *waiting))
    elif waiting:
        made.append(Chapter(title, tuple(waiting)))
    return tuple(made)


def narrated(paragraphs: Iterable[Paragraph]) -> list[Turn]:
    """Paragraphs as the narrator's turns."""
    said: list[list[str]] = []  # of each turn the words, and the pauses behind them
    for paragraph in paragraphs:
        text = _NOTE_MARK.sub("", paragraph.text).strip()
        script = read_pauses(text)
        if is_spoken(script.text):
            said.append([text, BREAK] if paragraph.is_heading else [text])
        elif said and script.pauses:
            said[-1].append(text)
        elif said and not text and not said[-1][-1].endswith(BREAK):
            said[-1].append(BREAK)
    return [Turn("", " ".join(parts)) for parts in said]
