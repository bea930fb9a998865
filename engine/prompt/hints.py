"""Live checks for a text editor: available tags, and problems with their positions."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.config import MAX_HINTS
from .card import ModelCard
from .said import Respelling, SaidText
from .script import pause_faults
from .spell_out import spell_out
from .tags import PAUSE_SECONDS, TAG_LIKE, TAG_VALUES, TextGuard, canonical_tag, find_directions, find_markup

PAUSES = ("[pause]", "[pause 1.5]")  # handled by the engine, for any model
# What is not spoken of a cue: a speaker's name, the number and the time.
_NAME = re.compile(r"^[^\S\n]*(?:\[[^\[\]\n]{1,60}\]|[^\W\d_][^:\n]{0,40}:(?!\S))", re.MULTILINE)
_CUE_HEAD = re.compile(r"^(?:[^\S\n]*[0-9]+[^\S\n]*|[^\n]{0,40}-->[^\n]*)$", re.MULTILINE)
_BEFORE, _THERE = "before the text it affects", "where it happens"


@dataclass(frozen=True)
class Hint:
    """A problem of a part of a text, with the warning that `speak` would give."""

    start: int
    stop: int
    says: str


@dataclass(frozen=True)
class TagGroup:
    """Tags of a kind for a menu. place: their place in a text. tags: (tag, reason why it has no effect, or "")."""

    name: str
    place: str
    tags: tuple[tuple[str, str], ...]


class TextCheck:
    """Checks texts for one checkpoint.

    guard: that of its tokenizer. has_tags: True if its family has control tags.
    """

    def __init__(self, guard: TextGuard, card: ModelCard, has_tags: bool):
        self._guard, self._card, self._has_tags = guard, card, has_tags

    def groups(self) -> list[TagGroup]:
        """Return the tags of the checkpoint's family, and the engine's pauses."""
        groups = [("pause", _THERE, PAUSES)]
        if self._has_tags:
            tags = {kind: tuple(f"<|{kind}:{value}|>" for value in values) for kind, values in TAG_VALUES.items()}
            prosody = tuple(tag for tag in tags["prosody"] if tag not in PAUSE_SECONDS)
            groups = [
                ("emotion", _BEFORE, tags["emotion"]),
                ("style", _BEFORE, tags["style"]),
                ("prosody", _BEFORE, prosody),
                ("sfx", _THERE, tags["sfx"]),
                ("pause", _THERE, (*PAUSES, *PAUSE_SECONDS)),
            ]
        return [TagGroup(name, place, tuple((tag, self._lacks(tag)) for tag in tags)) for name, place, tags in groups]

    def hints(self, text: str, unsaid: Iterable[tuple[int, int, str]] = (), directions: bool = True) -> list[Hint]:
        """Return the first MAX_HINTS problems in order: text that would be dropped or read differently.

        unsaid: problems of a script, see `Dialogue`. directions: also report markup, and sounds written as words.
        """
        kinds = [self._guard.complaints(text), pause_faults(text), self._faults(text)]
        kinds += [(one for one in unsaid if one[2])]
        kinds += [find_markup(text)] if directions else []
        kinds += [find_directions(text, self.follows)] if self._has_tags and directions else []
        problems = [one for kind in kinds for one in itertools.islice(kind, MAX_HINTS)]
        return [Hint(*one) for one in sorted(problems)[:MAX_HINTS]]

    def respellings(self, text: str, has_cues: bool = False) -> list[Respelling]:
        """Return the first MAX_HINTS parts of a text that the checkpoint says otherwise than written."""
        for pattern in (_NAME, _CUE_HEAD) if has_cues else ():
            text = pattern.sub(lambda match: " " * len(match[0]), text)
        return list(itertools.islice(self.spell_out(text).respellings, MAX_HINTS))

    def spell_out(self, text: str) -> SaidText:
        """Return a text with what the checkpoint says of it."""
        return spell_out(text, self._card.spell_out)

    def _faults(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield (start, stop, reason) for each known tag without effect."""
        lacks = functools.cache(self._lacks)
        for match in TAG_LIKE.finditer(text):
            tag = canonical_tag(match[0]) or ""
            if self._guard.is_tag(tag) and (why := lacks(tag)):
                yield *match.span(), why

    def follows(self, tag: str) -> bool:
        """True if the checkpoint follows a control tag."""
        return self._guard.is_tag(tag) and self._card.allows(tag)

    def notes(self, text: str) -> tuple[str, ...]:
        """Return warnings about the whole text: languages that the checkpoint does not speak."""
        return self._card.warnings(TAG_LIKE.sub(" ", text))

    def _lacks(self, spelled: str) -> str:
        """Return the reason why a known tag has no effect. Empty if it works."""
        tag = canonical_tag(spelled)
        if tag is None:
            return ""
        if not self._guard.is_tag(tag):
            return next((why for _, _, why in self._guard.complaints(tag)), "")
        return next(iter(self._card.warnings(tag)), "")
