"""The one exception the pack raises on purpose, and how values stand in its text, which is read by users."""

import reprlib
from collections.abc import Iterable

_LINE = 80  # characters of a file or a text that a message quotes


class HiggsError(Exception):
    """Error message with the file or value that caused it and what to do about it."""


# ComfyUI shows an exception's full name before its text, and this module's name holds the path of the pack.
HiggsError.__module__ = "builtins"

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _LINE
_REPR.maxlevel = 2


def shown(value: object) -> str:
    """A value for a message, as Python spells it: one line, cut to 80 characters, however long or deep it is."""
    text = _REPR.repr(value)
    return text if len(text) <= _LINE else f"{text[: _LINE - 3]}..."


def shown_name(name: str) -> str:
    """A name for a message: as it is, or as `shown` where it is long or cannot be printed on one line."""
    return name if len(name) <= _LINE and name.isprintable() else shown(name)


def few(sentences: Iterable[str], most: int = 20) -> tuple[str, ...]:
    """Each sentence once; of many the first ones, and how many more there are."""
    found = list(dict.fromkeys(sentences))
    return tuple(found if len(found) <= most else [*found[:most], f"And {len(found) - most:,} more like this."])
