"""Live text checks for a checkpoint, from its small files alone. Loads no weights."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint.catalog import DOWNLOADS
from ..checkpoint.load import inspect
from ..prompt.card import ModelCard, read_card
from ..prompt.hints import TextCheck
from ..prompt.tags import TAGS, TextGuard
from ..prompt.tokenizer import Vocabulary
from ..talker import FAMILIES


def text_check(folder: Path | str) -> TextCheck:
    """Return the text check of the checkpoint in a folder. Raises HiggsError as opening it would."""
    checkpoint = inspect(folder)
    vocabulary = Vocabulary(checkpoint.tokenizer, checkpoint.config)
    return TextCheck(vocabulary.guard, read_card(checkpoint.folder), vocabulary.family.has_tags)


def text_check_before(label: str = "") -> TextCheck:
    """Return the text check of a checkpoint not downloaded yet, by name in DOWNLOADS. Others allow all tags."""
    has_tags = label not in DOWNLOADS or FAMILIES[DOWNLOADS[label].family].has_tags
    return TextCheck(TextGuard(TAGS, not has_tags, "the tokenizer"), ModelCard(), has_tags)
