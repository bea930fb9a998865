"""A text while it is being written: the tags it may have, and at which place what is wrong with it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.config import MAX_HINTS
from .card import ModelCard
from .script import pause_faults, without_comments
from .tags import PAUSE_SECONDS, TAG_LIKE, TAG_VALUES, TextGuard, canonical_tag, find_directions, find_markup

PAUSES = ("[pause]", "[pause 1.5]")  # of our own: every model has them
_BEFORE, _THERE = "before the text it affects", "where it happens"


@dataclass(frozen=True)
class Hint:
    """Problem with a part of a text, in the words of the warning that speech would give."""

    start: int
    stop: int
    says: str


@dataclass(frozen=True)
class TagGroup:
    """Tags of a kind for a menu. place: where in a text they go; tags: (tag, why it does nothing here, or nothing)."""

    name: str
    place: str
    tags: tuple[tuple[str, str], ...]


class TextCheck:
    """Hints on a text for one checkpoint.

    guard: of its tokenizer. has_tags: whether its family has control tags.
    """

    def __init__(self, guard: TextGuard, card: ModelCard, has_tags: bool):
        self._guard, self._card, self._has_tags = guard, card, has_tags

    def groups(self) -> list[TagGroup]:
        """The tags that its family has, and our pauses."""
        found = [("pause", _THERE, PAUSES)]
        if self._has_tags:
            tags = {kind: tuple(f"<|{kind}:{value}|>" for value in values) for kind, values in TAG_VALUES.items()}
            prosody = tuple(tag for tag in tags["prosody"] if tag not in PAUSE_SECONDS)
            found = [
                ("emotion", _BEFORE, tags["emotion"]),
                ("style", _BEFORE, tags["style"]),
                ("prosody", _BEFORE, prosody),
                ("sfx", _THERE, tags["sfx"]),
                ("pause", _THERE, (*PAUSES, *PAUSE_SECONDS)),
            ]
        return [TagGroup(name, place, tuple((tag, self._lacks(tag)) for tag in tags)) for name, place, tags in found]

    def hints(self, text: str, is_script: bool = False, directions: bool = True) -> list[Hint]:
        """First places, in order, that would be left out or spoken otherwise than written.

        is_script: it may have comments. directions: sounds written as words, and markup, are read aloud.
        """
        text = without_comments(text) if is_script else text
        kinds = [self._guard.complaints(text), pause_faults(text), self._faults(text)]
        kinds += [find_markup(text)] if directions else []
        kinds += [find_directions(text, self._follows)] if self._has_tags and directions else []
        found = [one for kind in kinds for one in itertools.islice(kind, MAX_HINTS)]
        return [Hint(*one) for one in sorted(found)[:MAX_HINTS]]

    def _faults(self, text: str) -> Iterator[tuple[int, int, str]]:
        """(start, stop, why) of each known tag that does nothing here."""
        lacks = functools.cache(self._lacks)
        for match in TAG_LIKE.finditer(text):
            tag = canonical_tag(match[0]) or ""
            if self._guard.is_tag(tag) and (why := lacks(tag)):
                yield *match.span(), why

    def _follows(self, tag: str) -> bool:
        return self._guard.is_tag(tag) and (self._card.tags is None or tag in self._card.tags)

    def notes(self, text: str) -> tuple[str, ...]:
        """Problems with the text as a whole: languages that the checkpoint does not speak."""
        return self._card.warnings(TAG_LIKE.sub(" ", text))

    def _lacks(self, spelled: str) -> str:
        """Why a known tag does nothing here; empty where it works."""
        tag = canonical_tag(spelled)
        if tag is None:
            return ""
        if not self._guard.is_tag(tag):
            return next((why for _, _, why in self._guard.complaints(tag)), "")
        return next(iter(self._card.warnings(tag)), "")
