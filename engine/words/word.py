"""A word and its time, and words as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.errors import HiggsError, shown

MOST_SECONDS = 1e7  # of a time that is read from a file


@dataclass(frozen=True)
class Word:
    """A word as written, with its punctuation and without tags, and when it is heard."""

    text: str
    start: float  # seconds in the speech's wav
    end: float
    speaker: str = ""
    method: str = "estimated"  # how the times were found: attention, whisper or estimated
    doubt: str = ""  # why it is doubtful, a key of DOUBTS
    sentence: int = 0  # number in the speech, as `retakes` of `speak` takes it


def moved(words: Iterable[Word], by: float, tempo: float = 1.0) -> list[Word]:
    """Return words sped up by `tempo` and then moved by seconds."""
    return [replace(word, start=by + word.start / tempo, end=by + word.end / tempo) for word in words]


def word_rows(words: Iterable[Word]) -> list[dict[str, str | float]]:
    """Return words for JSON: {"word", "start", "end", "speaker", "method"}, in milliseconds' precision.

    Doubtful words also have "doubt".
    """
    return [
        {
            "word": word.text,
            "start": round(word.start, 3),
            "end": round(word.end, 3),
            "speaker": word.speaker,
            "method": word.method,
            **({"doubt": word.doubt} if word.doubt else {}),
        }
        for word in words
    ]


def words_json(words: Iterable[Word] | None) -> str:
    """Return words as JSON: {"words": [...]}, each as in `word_rows`. Empty for None."""
    return "" if words is None else json.dumps({"words": word_rows(words)}, ensure_ascii=False)


def read_words(text: str) -> list[Word]:
    """Parse the text of `words_json`. Raises HiggsError for any other."""
    try:
        words = [
            Word(
                *(str(row["word"]), float(row["start"]), float(row["end"]), str(row["speaker"])),
                *(str(row["method"]), str(row.get("doubt", ""))),
            )
            for row in json.loads(text)["words"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        words = None
    if words is None or not all(0 <= word.start <= word.end <= MOST_SECONDS for word in words):
        raise HiggsError(
            f"{shown(text)} is not JSON of word times. Connect the words output of Higgs Speak, Dialogue, Lines or "
            "Subtitles."
        )
    return words
