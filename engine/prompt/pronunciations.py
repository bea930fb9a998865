"""Custom pronunciations: a list of `word = spelling` lines."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..core.config import MAX_PRONOUNCED, MAX_PRONUNCIATIONS
from ..core.errors import HiggsError, shown
from .chunking import is_syllabic
from .names import speaker_key
from .script import Turn
from .tags import TAG_LIKE
from .wrapped import without_invisible

_COMMENT = re.compile(r"(?:^|\s)#")  # C# is a word
_SECTION = re.compile(r"\[([^\[\]]+)\]")
_MARKUP = rf"{TAG_LIKE.pattern}|\[[^\[\]\r\n]*\]"  # skipped


@dataclass(frozen=True)
class Pronunciations:
    """Entries (speaker's key or "", word, spelling), in list order. A speaker's own take precedence."""

    entries: tuple[tuple[str, str, str], ...] = ()

    def apply(self, text: str, speaker: str = "") -> str:
        """Replace whole words by their spelling for that speaker, except in tags and brackets.

        Lower-case entries match any case; others match exactly. The longest match wins, and replacements are not
        replaced again.
        """
        words = _words_of(self.entries, speaker_key(speaker))
        return words.replaced(without_invisible(text)) if words else text

    def respelled(self, turns: Iterable[Turn]) -> tuple[Turn, ...]:
        """Return the turns with each text as by `apply` for its speaker."""
        return tuple(replace(turn, text=self.apply(turn.text, turn.speaker)) for turn in turns)


class _Words:
    """Entries for one speaker, indexed by first letter and length, so lookup is linear in the text."""

    def __init__(self, spelled: Mapping[str, str]):
        # Keys: (length, word), or (length, casefolded word) for any case. The first of equal entries wins.
        self._exact: dict[tuple[int, str], tuple[int, str]] = {}
        self._any_case: dict[tuple[int, str], tuple[int, str]] = {}
        lengths: dict[str, set[int]] = {}
        for order, (word, spelling) in enumerate(spelled.items()):
            if word == word.lower():
                self._any_case.setdefault((len(word), word.casefold()), (order, spelling))
            else:
                self._exact[len(word), word] = (order, spelling)
            lengths.setdefault(word[0].casefold(), set()).add(len(word))
        self._lengths = {first: sorted(known, reverse=True) for first, known in lengths.items()}
        firsts = "".join(map(re.escape, {word[0] for word in spelled}))
        self._next = re.compile(f"(?P<markup>{_MARKUP})|(?i:[{firsts}])")

    def replaced(self, text: str) -> str:
        parts, done, at = [], 0, 0
        while match := self._next.search(text, at):
            start, at = match.start(), match.end()
            if match["markup"] is None and (entry := self._at(text, start)):
                length, spelling = entry
                parts += [text[done:start], spelling]
                done = at = start + length
        return "".join([*parts, text[done:]])

    def _at(self, text: str, start: int) -> tuple[int, str] | None:
        """Return (length, spelling) of the longest listed whole word at a position."""
        if start and _is_joined(text[start], text[start - 1]):
            return None
        for length in self._lengths.get(text[start].casefold(), ()):
            word, stop = text[start : start + length], start + length
            if len(word) < length or (stop < len(text) and _is_joined(word[-1], text[stop])):
                continue
            entries = self._exact.get((length, word)), self._any_case.get((length, word.casefold()))
            if entry := min(filter(None, entries), default=None):
                return length, entry[1]
        return None


@functools.lru_cache(64)
def _words_of(entries: tuple[tuple[str, str, str], ...], speaker: str) -> _Words | None:
    spelled: dict[str, str] = {}
    for of, word, spelling in sorted(entries, key=lambda entry: not entry[0]):
        if of in ("", speaker):
            spelled.setdefault(word, spelling)
    return _Words(spelled) if spelled else None


def _is_joined(own: str, other: str) -> bool:
    """True if `other` continues a word that begins or ends with `own`. False in scripts without spaces."""
    return not is_syllabic(own) and (other.isalnum() or other == "_" or unicodedata.category(other)[0] == "M")


def read_pronunciations(text: str, source: str = "pronunciations") -> Pronunciations:
    """Parse `word = spelling` lines. Those below a line such as [Anna] apply to that speaker; # begins a comment.

    Raises HiggsError, naming `source`, if a line is invalid or too long, or there are too many.
    """
    entries, speaker = [], ""
    for number, line in enumerate(without_invisible(text).splitlines(), 1):
        plain = _COMMENT.split(line)[0].strip()
        if section := _SECTION.fullmatch(plain):
            speaker = speaker_key(section[1])
        elif plain:
            word, equals, spelling = (part.strip() for part in plain.partition("="))
            if not (word and equals and spelling):
                raise HiggsError(
                    f"{source}, line {number}: {shown(plain)} is not an entry. Write it like this: Nguyen = Win."
                )
            if max(len(word), len(spelling)) > MAX_PRONOUNCED:
                raise HiggsError(
                    f"{source}, line {number}: {shown(plain)} is too long. A word and its spelling may have at most "
                    f"{MAX_PRONOUNCED} characters each."
                )
            entries.append((speaker, word, spelling))
    if len(entries) > MAX_PRONUNCIATIONS:
        raise HiggsError(f"{source} has {len(entries):,} entries. Shorten it to {MAX_PRONUNCIATIONS:,} at most.")
    return Pronunciations(tuple(entries))
