"""Hints on a text that is being written, from a checkpoint's small files. Opens no weights."""

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
    """Of the checkpoint in a folder. Raises HiggsError as opening it would."""
    checkpoint = inspect(folder)
    vocabulary = Vocabulary(checkpoint.tokenizer, checkpoint.config)
    return TextCheck(vocabulary.guard, read_card(checkpoint.folder), vocabulary.family.has_tags)


def text_check_before(label: str = "") -> TextCheck:
    """Of a checkpoint that is to be downloaded, by its name in DOWNLOADS; of another one, with every tag there is."""
    has_tags = label not in DOWNLOADS or FAMILIES[DOWNLOADS[label].family].has_tags
    return TextCheck(TextGuard(TAGS, not has_tags, "the tokenizer"), ModelCard(), has_tags)
