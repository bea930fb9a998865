"""Optional model card, higgs_tts.json in a checkpoint's folder: what the checkpoint has learned.

    {"languages": ["en"], "tags": ["<|prosody:pause|>"], "one_voice": true, "word_heads": [[1, 0, 0]],
     "chunk_seconds": 12, "spell_out": "en", "sharpness": 3.2}

languages: BCP 47 codes. tags: control tags that work. A missing list restricts nothing.
one_voice: without a reference, it always speaks with the same voice. word_heads: [layer, head, lag] of attention heads
that follow the words, see `words/heads.py`. Without it, they are looked for when they are first needed.
chunk_seconds: longest chunks of text that it speaks without losing its place; longer text is split.
spell_out: language in which figures, units, signs and capitals become words before it reads them, see `spell_out.py`.
sharpness: factor by which its logits are larger than those it was trained with, which training takes back.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ..core.errors import HiggsError, listed
from ..files.json_file import read_json
from .language import foreign, name_of
from .spell_out import TABLES
from .tags import TAG_LIKE, TAGS, canonical_tag

CARD = "higgs_tts.json"
_SHORTEST = 2.0  # seconds of a chunk; less is not a sentence
_SHARPEST = 100.0
_listed = functools.partial(listed, most=6)  # names in a warning
_NAMES = 'is not a list of names such as ["..."]'


@dataclass(frozen=True)
class ModelCard:
    """Languages and tags of a checkpoint. None if the card does not restrict them."""

    languages: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    one_voice: bool = False
    word_heads: object = None  # as written
    chunk_seconds: float = math.inf
    spell_out: str = ""  # a key of TABLES, or empty
    sharpness: float = 1.0
    notes: tuple[str, ...] = ()  # problems of the card itself

    def allows(self, tag: str) -> bool:
        return self.tags is None or tag in self.tags

    def warnings(self, text: str) -> tuple[str, ...]:
        """Return warnings about languages and tags in `text` that the checkpoint has not learned: at most one each."""
        return tuple(filter(None, (self._of_languages(text), self._of_tags(text))))

    def describe(self) -> str:
        """Describe the restrictions for users. Empty if there are none."""
        parts = [] if self.languages is None else [_listed([name_of(code) for code in self.languages])]
        parts += [] if self.tags is None else [f"{len(self.tags)} of {len(TAGS)} control tags"]
        return ", ".join(parts)

    def _of_languages(self, text: str) -> str:
        if self.languages is None:
            return ""
        unknown = foreign(TAG_LIKE.sub(" ", text), self.languages)
        known = _listed([name_of(code) for code in self.languages])
        return f"This checkpoint speaks only {known}; {_listed(unknown)} text will come out wrong." if unknown else ""

    def _of_tags(self, text: str) -> str:
        if self.tags is None:
            return ""
        used = dict.fromkeys(canonical_tag(match[0]) for match in TAG_LIKE.finditer(text))
        if not (missing := [tag for tag in used if tag and tag not in self.tags]):
            return ""
        known = f"It has learned only {_listed(self.tags)}." if self.tags else "It has learned no control tags."
        they = "it" if len(missing) == 1 else "they"
        return f"This checkpoint has not learned {_listed(missing)}: {they} may do nothing or spoil the speech. {known}"


def read_card(folder: Path) -> ModelCard:
    """Read the card of the checkpoint in `folder`. Never raises: its notes say why it could not be read."""
    path = folder / CARD
    if not path.is_file():
        return ModelCard()
    try:
        held = read_json(path)
    except HiggsError as error:
        return ModelCard(notes=(f"{error} Until then it is ignored.",))
    notes: list[str] = []

    def read(name: str, default: Any, fits: Callable[[Any], bool], rule: str) -> Any:
        if (value := held.get(name)) is None:
            return default
        if fits(value):
            return value
        notes.append(f"{path}: {name} {rule}, so it is ignored. Correct it.")
        return default

    languages = read("languages", None, _is_names, _NAMES)
    tags = read("tags", None, _is_names, _NAMES)
    if tags is not None:
        if unknown := [tag for tag in tags if canonical_tag(tag) is None]:
            verb = "is" if len(unknown) == 1 else "are"
            notes.append(
                f"{path}: tags lists {_listed(unknown)}, which {verb} not known as control tags. Remove what is wrong."
            )
        tags = tuple(tag for tag in map(canonical_tag, tags) if tag)
    return ModelCard(
        tuple(languages) if languages else None,
        tags,
        held.get("one_voice") is True,
        held.get("word_heads"),
        float(read("chunk_seconds", math.inf, _is_length, f"must be a number from {_SHORTEST:g}")),
        sharpness=float(read("sharpness", 1.0, _is_factor, f"must be a number up to {_SHARPEST:g}")),
        spell_out=read("spell_out", "", _is_table, f"must be one of {', '.join(TABLES)}"),
        notes=tuple(notes),
    )


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


def _is_length(value: object) -> bool:
    return _is_number(value) and _SHORTEST <= value <= sys.float_info.max  # JSON may have integers above


def _is_factor(value: object) -> bool:
    return _is_number(value) and 0 < value <= _SHARPEST


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_table(value: object) -> bool:
    return isinstance(value, str) and value in TABLES
