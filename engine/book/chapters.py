"""Plan chapters: file names, fingerprints, and turns to batch together. Reads no disk."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..core.config import SamplingParams
from ..prompt.chunking import estimate_seconds, split_text
from ..prompt.script import Turn, read_pauses
from ..voice.voice import Voice
from .book import Book, Chapter

GROUP_SECONDS = 1200.0  # estimated seconds per batch: enough to fill it, and few enough for the host's memory
_MOST_DEVICES = 8  # more devices do not enlarge a batch: the host's memory again
_LEAST_PASSAGE, _MOST_PASSAGE = 6.0, 12.0  # seconds of text spoken to get a voice for a narrator without one
_LOOKED_AT = 200_000  # characters of a paragraph that are cut to find its first words
_SHORT = 2000  # characters of a passage that stands in the fingerprint of each turn
_NOT_PORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')
_NAME_BYTES = 120


@dataclass(frozen=True)
class PlannedChapter:
    """A chapter, its number from 1, its file name without suffix, and a fingerprint of all that it is made from."""

    number: int
    chapter: Chapter
    name: str
    fingerprint: str

    @property
    def seconds(self) -> float:
        """Return the estimated length."""
        return sum(estimate_seconds(turn.text) for turn in self.chapter.turns)


def plan_chapters(book: Book, sound: Iterable[object], voices: Mapping[str, Voice]) -> list[PlannedChapter]:
    """Plan the book's chapters. sound: JSON values, besides text and voices, that decide the sound."""
    numbered = number_turns(book)
    passages = {speaker: passage_of(book, speaker) for speaker in book.speakers if speaker not in voices}
    passages = {speaker: text if len(text) <= _SHORT else _digest_of(text) for speaker, text in passages.items()}
    known = {speaker: voice.digest() for speaker, voice in voices.items()} | passages
    width = len(str(len(numbered)))
    planned = []
    for number, chapter in enumerate(numbered, 1):
        turns = [[known[turn.speaker], turn.speaker, turn.text, turn.seed, turn.volume, turn.occurrence]
                 for turn in chapter.turns]  # fmt: skip
        made_of = json.dumps([book.title, book.author, number, chapter.title, turns, *sound])
        name = f"{number:0{max(2, width)}} {portable(chapter.title)}".strip()
        planned.append(PlannedChapter(number, chapter, name, hashlib.sha256(made_of.encode()).hexdigest()))
    return planned


def number_turns(book: Book) -> list[Chapter]:
    """Number each turn among turns with the same words, since its noise depends on that.

    So the noise depends neither on batches nor on what was spoken already.
    """
    occurrences = Counter()
    chapters = []
    for chapter in book.chapters:
        turns = []
        for turn in chapter.turns:
            words = turn.speaker, read_pauses(turn.text).text.strip()
            turns.append(replace(turn, occurrence=occurrences[words]))
            occurrences[words] += 1
        chapters.append(replace(chapter, turns=tuple(turns)))
    return chapters


def passage_of(book: Book, speaker: str) -> str:
    """Return the start of a speaker's text, without credits. It is spoken once and becomes the voice of the rest."""
    passage = ""
    for chapter in filter(lambda one: not one.is_credits, book.chapters):
        for turn in chapter.turns:
            if turn.speaker != speaker or len(passage) > _LOOKED_AT // 10:  # long without a word
                continue
            if estimate_seconds(passage) < _LEAST_PASSAGE:
                passage += f" {' '.join(read_pauses(turn.text[:_LOOKED_AT]).text.split())}"
    return split_text(passage.strip(), _MOST_PASSAGE)[0]


def groups(chapters: Iterable[PlannedChapter], devices: int = 1) -> Iterator[list[tuple[PlannedChapter, Turn]]]:
    """Yield turns to batch together, in order. Long chapters are split, short ones joined."""
    most = GROUP_SECONDS * min(devices, _MOST_DEVICES)
    group: list[tuple[PlannedChapter, Turn]] = []
    seconds = 0.0
    for planned in chapters:
        for turn in planned.chapter.turns:
            group.append((planned, turn))
            seconds += estimate_seconds(turn.text)
            if seconds >= most:
                yield group
                group, seconds = [], 0.0
    if group:
        yield group


def portable(title: str) -> str:
    """Return a title that is valid in file names on every system."""
    plain = " ".join(_NOT_PORTABLE.sub(" ", title).split())
    return plain.encode()[:_NAME_BYTES].decode(errors="ignore").rstrip(" .")


def settings_of(params: SamplingParams) -> dict[str, object]:
    """Return sampling parameters by name, but for the check: a chapter that is there stays."""
    return {name: getattr(params, name) for name in params.__dataclass_fields__ if name != "check"}


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
