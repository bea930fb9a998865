"""Stage directions in scripts: lines in brackets, and brackets at the start of a turn. They are not spoken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from .script import PAUSE_MARKER, is_pause
from .tags import manner_tags, stage_directions

_ROUND = r"[(（][^()（）]*(?:[(（][^()（）]*[)）][^()（）]*)*[)）]"
_SQUARE = r"[\[［【〔{][^\[\]［］【】〔〕{}]*[\]］】〕}]"
_SIGNS = "()（）[]［］【】〔〕{}*"
# Also *He leaves.* and, from screenplays, INT. KITCHEN - DAY and FADE OUT.
_WHOLE = re.compile(
    rf"[*_]{{0,3}}(?:(?:{_ROUND}|{_SQUARE})[.,;:!?…]?\s*)+[*_]{{0,3}}|\*[^\s*][^*]*\*|_[^\s_][^_]*_|"
    r"(?:INT|EXT|I/E)\b\.?[ /].*|(?:FADE (?:IN|OUT|TO)|CUT TO|DISSOLVE TO)\b[^a-z]*"
)
_INSIDE = re.compile(rf"(?:(?<=[.!?…。！？\]])\s*|^\s*)({_ROUND}|{_SQUARE})")
_LEAD = re.compile(rf"({_ROUND}|{_SQUARE}|\*{{1,2}}[^*\n]{{2,40}}\*{{1,2}})[.,:;]?\s*")
_OPENED = re.compile(r"[*_]{0,3}[(（\[［【〔][^()（）\[\]［］【】〔〕]*")
_CLOSED = re.compile(r"[^()（）\[\]［］【】〔〕]*[)）\]］】〕][.!?…]?[*_]{0,3}")
_LINES = 6  # maximum of one direction
_LONGEST = 90  # characters of a direction before a turn's words
# In brackets before a sentence these are said rather than done: "(I know.) Fine."
_SAID = frozenset(
    "i i'm i've i'll i'd me my mine we we're us our you you're your ich mir mich du dir wir uns ihr je j'ai moi tu toi "
    "nous vous yo tú mi nosotros io noi eu você nós я мне мы ты вы".split()
)
_ACTORS = frozenset("he she they it exit exits exeunt enter enters".split())
_SAID_SIGNS = re.compile("[?？我你您私僕俺나너]")


def direction_lines(lines: Sequence[str]) -> list[bool]:
    """Return for each line of a script whether it is all in brackets, by itself or with its neighbours."""
    lines = [line.strip() for line in lines]
    are_directions = [_is_whole(line) for line in lines]
    for at, line in enumerate(lines):
        end = at
        while _OPENED.fullmatch(line) and (end := end + 1) < min(len(lines), at + _LINES) and lines[end]:
            if _CLOSED.fullmatch(lines[end]):
                are_directions[at : end + 1] = [True] * (end + 1 - at)
            if set(lines[end]) & set(_SIGNS):
                break
    return are_directions


def pauses_in(line: str) -> str:
    return " ".join(marker[0] for marker in re.finditer(PAUSE_MARKER, line))


def lead_of(text: str) -> tuple[str, str, str]:
    """Return (direction at the start of a turn's text, the same without brackets, text after it), or ("", "", text).

    It is a manner or a sound, "(sadly) yes" or "*sighs* No.", or what somebody does, before a sentence: "(Nods.) Yes."
    """
    lead = None if is_pause(text) else _LEAD.match(text)
    if lead is None or len(lead[1]) > _LONGEST or not any(map(str.isalpha, lead[1])):
        return "", "", text
    inside, rest = lead[1].strip(_SIGNS).strip(), text[lead.end() :]
    words = (word.strip(".,;:!…") for word in inside.lower().replace("’", "'").split())
    if lead[1][0] == "*":
        is_direction = bool(stage_directions(lead[1]))
    elif not _SAID.isdisjoint(words) or _SAID_SIGNS.search(inside):
        is_direction = False
    else:
        tags = manner_tags(inside)
        is_direction = any(tags.values()) or not tags or begins_sentence(rest)
    return (lead[1], inside, rest) if is_direction else ("", "", text)


def actions_in(text: str, is_name: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of what somebody does, between sentences: "Bye. (He leaves.) Now." is_name: of a speaker."""
    for match in _INSIDE.finditer(text):
        first = match[1].strip(_SIGNS).split()[:1]
        if len(match[1]) <= _LONGEST and first and (first[0].lower() in _ACTORS or is_name(first[0])):
            yield match.span(1)


def begins_sentence(text: str) -> bool:
    """True if its first letter is not a small one."""
    return not next(filter(str.isalnum, text), "").islower()


def _is_whole(line: str) -> bool:
    return _WHOLE.fullmatch(line) is not None and any(map(str.isalpha, re.sub(PAUSE_MARKER, "", line)))
