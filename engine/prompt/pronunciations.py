"""Words that are to be said otherwise than they are written: a list of `word = spelling` lines. Knows no model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import HiggsError
from .chunking import is_syllabic
from .names import speaker_key
from .tags import TAG_LIKE

_COMMENT = re.compile(r"(?:^|\s)#")  # C# is a word
_SECTION = re.compile(r"\[([^\[\]]+)\]")
_MARKUP = rf"{TAG_LIKE.pattern}|\[[^\[\]\r\n]*\]"  # what a text says beside its words


@dataclass(frozen=True)
class Pronunciations:
    """(speaker's key or nothing, word, spelling) each, in the order of the list; a speaker's own come first."""

    entries: tuple[tuple[str, str, str], ...] = ()

    def apply(self, text: str, speaker: str = "") -> str:
        """`text` with its words as they are spelled for that speaker: whole words, and nothing in tags and brackets.

        A word listed in small letters is meant in any case, another as it is written. Of two that begin alike the
        longer is meant, and what has been put in is not looked at again.
        """
        spelled: dict[str, str] = {}
        for of, word, spelling in sorted(self.entries, key=lambda entry: not entry[0]):
            if of in ("", speaker_key(speaker)):
                spelled.setdefault(word, spelling)
        if not spelled:
            return text
        words = sorted(spelled, key=len, reverse=True)
        said = [None, *(spelled[word] for word in words)]  # by the group that matched
        pattern = re.compile("|".join(f"({part})" for part in (_MARKUP, *map(_whole, words))))
        return pattern.sub(lambda found: said[(found.lastindex or 1) - 1] or found[0], text)


def read_pronunciations(text: str, source: str = "pronunciations") -> Pronunciations:
    """A list: `word = spelling` lines, for one speaker below a line such as [Anna]; # begins a comment.

    Raises HiggsError for a line that is none of these, naming `source`.
    """
    entries, speaker = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        plain = _COMMENT.split(line)[0].strip()
        if section := _SECTION.fullmatch(plain):
            speaker = speaker_key(section[1])
        elif plain:
            word, equals, spelling = (part.strip() for part in plain.partition("="))
            if not (word and equals and spelling):
                raise HiggsError(
                    f"{source}, line {number}: '{plain}' is not an entry. Write for example: Nguyen = Win."
                )
            entries.append((speaker, word, spelling))
    return Pronunciations(tuple(entries))


def _whole(word: str) -> str:
    """A pattern for the word alone. In scripts without spaces a word has letters on both sides."""
    before = "" if is_syllabic(word[0]) else r"(?<!\w)"
    after = "" if is_syllabic(word[-1]) else r"(?!\w)"
    written = re.escape(word)
    return f"{before}{f'(?i:{written})' if word == word.lower() else written}{after}"
