"""Subtitles at the times of words, and the words of each turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ..core.config import SAMPLE_RATE
from ..prompt.chunking import split_sentences, split_words
from ..prompt.cues import Cue
from ..speech.result import SpeechResult, SpokenTurn
from ..speech.subtitles import cues_of, srt_of
from .word import Word

_GAP = 0.7  # seconds of silence that end a line


def to_srt(speech: SpeechResult, words: Sequence[Word] | None = None, size: int = 0) -> str:
    """Return SubRip text: a cue per sentence, or per line of at most `size` words.

    words: those of the speech; sentences get their times too. Cues of sentences carry names if there are several
    speakers.
    """
    if words is None:
        return srt_of(cues_of(speech))
    return srt_of(lines_of(words, size) if size else sentences_of(speech, words))


def turn_to_srt(speech: SpeechResult, number: int, words: Sequence[Word] | None = None, size: int = 0) -> str:
    """Return one turn of a dialogue like `to_srt`. number: index in `speech.turns`. words: see `words_by_turn`."""
    return to_srt(speech.of_turn(number), words, size)


def sentences_of(speech: SpeechResult, words: Sequence[Word]) -> list[Cue]:
    """Return a cue for each spoken sentence, from its first word to its last."""
    return [Cue(own[0].start, own[-1].end, text, chunk.speaker) for chunk, text, own in _by_sentence(speech, words)]


def lines_of(words: Sequence[Word], size: int) -> list[Cue]:
    """Return a cue for each line of at most `size` words, without names. Sentences, turns and long silences end one."""
    lines: list[list[Word]] = []
    for word in words:
        if not lines or len(lines[-1]) >= size or _ends(lines[-1][-1], word):
            lines.append([])
        lines[-1].append(word)
    return [Cue(line[0].start, line[-1].end, _joined(line)) for line in lines]


def words_by_turn(speech: SpeechResult, words: Sequence[Word]) -> list[list[Word]]:
    """Return the words of each turn, from the turn's start.

    Times are shifted by whole samples, so they do not depend on the turn's place.
    """
    by_turn: list[list[Word]] = [[] for _ in speech.turns]
    for chunk, _, own in _by_sentence(speech, words):
        at = next(at for at, turn in enumerate(speech.turns) if turn.start <= chunk.start < turn.stop)
        start = speech.turns[at].start
        for word in own:
            begin, end = ((round(time * SAMPLE_RATE) - start) / SAMPLE_RATE for time in (word.start, word.end))
            by_turn[at].append(replace(word, start=begin, end=end))
    return by_turn


def _by_sentence(speech: SpeechResult, words: Sequence[Word]) -> Iterator[tuple[SpokenTurn, str, list[Word]]]:
    left = iter(words)
    for chunk in filter(lambda chunk: chunk.is_spoken, speech.said):
        for sentence in split_sentences(chunk.text):
            yield chunk, sentence, list(islice(left, len(split_words(sentence))))


def _ends(word: Word, following: Word) -> bool:
    """True if a line ends between two words."""
    is_apart = word.speaker != following.speaker or following.start - word.end > _GAP
    return is_apart or len(split_sentences(f"{word.text} {following.text}")) > 1


def _joined(words: Sequence[Word]) -> str:
    """Return a line's text, without spaces where the script has none."""
    text = words[0].text
    for word in words[1:]:
        is_unspaced = len(split_words(text.split()[-1] + word.text)) > len(split_words(text.split()[-1]))
        text += word.text if is_unspaced else f" {word.text}"
    return text
