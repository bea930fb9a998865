"""A book to be read aloud, as chapters of turns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..prompt.pronunciations import Pronunciations
from ..prompt.script import Turn, read_pauses
from ..prompt.tags import is_spoken
from ..prompt.wrapped import without_invisible
from .marks import without_marks

BREAK = "[pause 1.5]"  # at the end of a scene, and after a heading
_SAYS = frozenset("!?\"'“”‘’„«»")  # signs of speech without words
_ORNAMENT = re.compile(r"\W*(?:o\W*[O0]\W*o|[xX](?:\s+[xX]){2})\W*")
_LONGEST_TITLE = 80


@dataclass(frozen=True)
class Paragraph:
    """A paragraph's text, or nothing at the end of a scene. level: of a heading, from 1; else 0."""

    text: str
    level: int = 0


@dataclass(frozen=True)
class Chapter:
    """A chapter's title and turns, one per paragraph, its heading first. is_credits: it is not in the book."""

    title: str
    turns: tuple[Turn, ...]
    is_credits: bool = False


@dataclass(frozen=True)
class BookDetails:
    """Details that players show of a book besides title and author; empty if unknown.

    year: or a date such as 2026-11-28. language: such as en. cover: a JPEG or PNG file.
    """

    narrator: str = ""
    year: str = ""
    language: str = ""
    genre: str = ""
    description: str = ""
    cover: bytes = b""


@dataclass(frozen=True)
class Book:
    """Chapters in order, each with something to say.

    left_out: short names of the parts not read aloud. head: speaker -> voice, as a script's head names them.
    """

    title: str
    chapters: tuple[Chapter, ...]
    author: str = ""
    left_out: tuple[str, ...] = ()
    head: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: BookDetails = BookDetails()

    def said_as(self, pronunciations: Pronunciations) -> Book:
        parts = tuple(replace(one, turns=pronunciations.respelled(one.turns)) for one in self.chapters)
        return replace(self, chapters=parts)

    @property
    def speakers(self) -> list[str]:
        """Return the speakers in order of appearance."""
        return list(dict.fromkeys(turn.speaker for chapter in self.chapters for turn in chapter.turns))


def title_of(text: str) -> str:
    """Shorten a heading to a title of one line."""
    line = " ".join(without_invisible(text).split())
    return line if len(line) <= _LONGEST_TITLE else line[:_LONGEST_TITLE].rsplit(" ", 1)[0] + "..."


def make_chapters(
    title: str, parts: Iterable[tuple[str, Sequence[Paragraph]]], left_out: Counter[str]
) -> tuple[Chapter, ...]:
    """Turn (title, paragraphs) parts into chapters. A part with only a heading joins the next.

    title: the book's, for parts without one. left_out: see `narrated`.
    """
    made: list[Chapter] = []
    waiting: list[Turn] = []  # headings without a text
    for name, paragraphs in parts:
        if not (turns := narrated(paragraphs, left_out)):
            continue
        waiting += turns
        if any(not paragraph.level and is_spoken(paragraph.text) for paragraph in paragraphs):
            made.append(Chapter(title_of(name) or title, tuple(waiting)))
            waiting = []
    if waiting and made:
        made[-1] = Chapter(made[-1].title, (*made[-1].turns, *waiting))
    elif waiting:
        made.append(Chapter(title, tuple(waiting)))
    return tuple(made)


def is_scene_break(text: str) -> bool:
    """True if a line has only signs or an ornament, such as * * * or oOo."""
    is_plain = not any(character.isalnum() or character in _SAYS for character in text)
    return bool(text.strip()) and (is_plain or (len(text) < 20 and _ORNAMENT.fullmatch(text) is not None))


def narrated(paragraphs: Iterable[Paragraph], left_out: Counter[str]) -> list[Turn]:
    """Return paragraphs as the narrator's turns, without note marks, which are counted in `left_out`."""
    turn_parts: list[list[str]] = []  # words of each turn, and the pauses behind them
    for paragraph in paragraphs:
        text = without_marks(without_invisible(paragraph.text), left_out).strip()
        script = read_pauses(text)
        if is_spoken(script.text) and not is_scene_break(text):
            turn_parts.append([text, BREAK] if paragraph.level else [text])
        elif turn_parts and script.pauses:
            turn_parts[-1].append(text)
        elif turn_parts and (not text or is_scene_break(text)) and not turn_parts[-1][-1].endswith(BREAK):
            turn_parts[-1].append(BREAK)
    return [Turn("", " ".join(parts)) for parts in turn_parts]
