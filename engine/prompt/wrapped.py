"""Text as it was meant: with composed letters, without invisible characters and line ends that only fill a page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from itertools import pairwise

from ..files.portable_names import composed

# Soft hyphens, zero-width spaces, and marks of direction. Joiners stay in scripts and emoji that need them.
_UNSEEN = r"\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
_INVISIBLE = re.compile(rf"\u00ad[^\S\n]*\n[^\S\n]*|[{_UNSEEN}]|(?<![^\0-\u024f])[\u200c\u200d]")
_BEGIN = re.compile(rf"[\s{_UNSEEN}]*")
# What belongs to the letter before it and is not in \w: vowel signs of Hindi and Thai, accents of their own, joiners.
_MARKS = "".join(one for one in map(chr, range(0x300, 0xFE30)) if unicodedata.category(one)[0] == "M")
MARKS = rf"{_MARKS}\u200c\u200d{_UNSEEN}"
_LETTER = r"[^\W\d_]"
_BROKEN = re.compile(rf"(?<!{_LETTER})({_LETTER}+)-[^\S\n]*\n[^\S\n]*(?=({_LETTER}+)(-?))")
_WORDS = re.compile(rf"(?<!\0)(?<!{_LETTER}){_LETTER}+(?:-{_LETTER}+)*")
_AND = frozenset("and or to und oder bis et ou y o e".split())  # pre- and post-war
_BEFORE_HYPHEN = frozenset("well self half ever twenty thirty forty fifty sixty seventy eighty ninety".split())
_BEHIND_HYPHEN = frozenset("known year old eyed haired looking minded called based handed hearted born century".split())
_LIST = re.compile(r"[-*+•·–—>#|\[]|\w{1,3}[.)]\s")
_LEAST_WIDTH = 40  # characters of a line; verses and lists are shorter


def mended(text: str) -> str:
    """Return a text without invisible characters, broken words and the line ends of hard-wrapped prose."""
    if text.isascii() and "\n" not in text:
        return text
    return unwrapped(joined_words(without_invisible(text)))


def without_invisible(text: str) -> str:
    """Return a text without invisible characters, and with composed letters: models have seldom read others."""
    return text if text.isascii() else composed(_INVISIBLE.sub("", text))


def begun(line: str) -> str:
    """Return a line from its first visible character on."""
    return _BEGIN.sub("", line, count=1)


def joined_words(text: str, words: Set[str] | None = None) -> str:
    """Join words that are broken at line ends: val-|ley, but well-|known keeps its hyphen.

    words: whole ones of which the text is a part, see `whole_words`; else its own.
    """
    if "-" not in text or not _BROKEN.search(text):
        return text
    words = whole_words(text) if words is None else words

    def judge(match: re.Match) -> str:
        left, right = match[1].lower(), match[2].lower()
        if right in _AND and not match[3]:
            return f"{match[1]}- "
        if match[1].isupper() != match[2].isupper() or not match[2].islower() | match[2].isupper():
            return match[0] if match[2].lower() == match[2].upper() else f"{match[1]}-"  # Jean-Paul; no case
        is_compound = match.string[max(0, match.start() - 1)] == "-" or match[3]  # up-to-date
        is_known = f"{left}-{right}" in words or {left, right} <= words
        is_hyphen = len(left) == 1 or left in _BEFORE_HYPHEN or right in _BEHIND_HYPHEN
        return match[1] + ("-" if left + right not in words and (is_compound or is_known or is_hyphen) else "")

    return _BROKEN.sub(judge, text)


def whole_words(text: str) -> Set[str]:
    return set(_WORDS.findall(_BROKEN.sub("\0", text.lower())))


def unwrapped(text: str) -> str:
    """Replace the line ends of hard-wrapped prose by spaces. Lists, poems and paragraphs keep theirs.

    In wrapped prose nearly every line is so full that the next word would not fit, and many begin in lower case.
    """
    lines = text.split("\n")
    widths = sorted(len(line.rstrip()) for line in lines if line.strip())
    width = widths[-1 - len(widths) // 10] if len(widths) > 1 else 0  # a few may be longer
    if width < _LEAST_WIDTH:
        return text
    is_full, begins_low, count = [False], 0, 0  # is_full: of each line, True if its end only fills the page
    for line, after in pairwise(lines):
        words = after.split(maxsplit=1)
        is_end = not line.strip() or not words or _LIST.match(after.lstrip()) is not None
        is_full.append(not is_end and len(line.rstrip()) + 1 + len(words[0]) > width)
        count += not is_end
        begins_low += not is_end and words[0].lstrip("\"'“‘«(")[:1].islower()
    if 4 * sum(is_full) < 3 * count or 10 * begins_low < 3 * count:
        return text
    parts = [lines[0]]
    for line, fills in zip(lines[1:], is_full[1:], strict=True):
        parts[-1:] = [parts[-1].rstrip(), " ", line.lstrip()] if fills else [parts[-1], "\n", line]
    return "".join(parts)
