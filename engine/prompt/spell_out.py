"""Spelling out what a checkpoint has not learned to read: figures, units, signs and capitals become words.

A card's `spell_out` names the table. Without one, a checkpoint gets every text as written.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

from . import english
from .said import Respelling, SaidText

TABLES = {"en": english.spellings}
_OWN = {"\u2116": "No. ", "\u00a0": " ", "\u202f": " "}  # folded in a way of their own
_FOLDED = ("<compat>", "<wide>", "<font>", "<circle>", "<square>", "<fraction>")  # and others are kept: ², ™, ...


@functools.lru_cache(64)  # a request asks several times
def spell_out(text: str, language: str) -> SaidText:
    """Return the text as a checkpoint with that table says it. Control tags and pauses stay as they are."""
    table = TABLES.get(language)
    return SaidText(text) if table is None else SaidText(text, tuple(_respellings(text, *_fold(text), table)))


def _respellings(text: str, folded: str, places: list[int], table: english.Table) -> Iterator[Respelling]:
    before, end = "", 0  # what is said last so far
    for start, stop, spelling in _with_folded(text, folded, places, table(folded)):
        first, last = places[start], places[stop - 1] + 1
        while first < last - 1 and spelling[:1].isspace() and spelling[0] == text[first]:
            first, spelling = first + 1, spelling[1:]
        while first < last - 1 and spelling[-1:].isspace() and spelling[-1] == text[last - 1]:
            last, spelling = last - 1, spelling[:-1]
        if first < end or text[first:last] == spelling:
            continue
        before = text[first - 1 : first] if first > end else before
        blank = " " if spelling and _is_joined(before, spelling[0]) else ""
        after = " " if spelling and _is_joined(spelling[-1], text[last : last + 1]) else ""
        yield Respelling(first, last, blank + spelling + after)
        before, end = (blank + spelling + after)[-1:] or before, last


def _is_joined(one: str, other: str) -> bool:
    return one.isalnum() and other.isalnum() and other.isdecimal() == other.isdigit()  # no raised digit


def _with_folded(
    text: str, folded: str, places: list[int], spellings: Iterator[english.Spelling]
) -> Iterator[english.Spelling]:
    """Add the words whose letters alone were folded."""
    at = 0
    for start, stop, spelling in spellings:
        yield from _folded_words(text, folded, places, at, start)
        yield start, stop, spelling
        at = stop
    yield from _folded_words(text, folded, places, at, len(folded))


def _folded_words(text: str, folded: str, places: list[int], start: int, stop: int) -> Iterator[english.Spelling]:
    if len(text) == len(folded) and text[start:stop] == folded[start:stop]:
        return
    for word in english.WORD.finditer(folded, start, stop):
        if text[places[word.start()] : places[word.end() - 1] + 1] != word[0]:
            yield *word.span(), word[0]


def _fold(text: str) -> tuple[str, list[int]]:
    """Return text with plain letters and figures for ligatures, full-width forms and the like, and their places."""
    pieces = [_folded(character) for character in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]


@functools.lru_cache(4096)
def _folded(character: str) -> str:
    if character.isascii() or character in _OWN:
        return _OWN.get(character, character)
    kind = unicodedata.decomposition(character).partition(" ")[0]
    plain = unicodedata.normalize("NFKC", character).replace("\u2044", "/") if kind in _FOLDED else character
    if character == "\u2026" or not plain.isascii():
        return character
    return f" {plain} " if kind == "<fraction>" else plain
