"""The pack's exception, and formatting of values in its messages, which users read."""

import copyreg
import reprlib
from collections.abc import Iterable, Sequence

LISTED = 8  # maximum names in a message
_LINE = 80  # maximum characters of a quoted value


class HiggsError(Exception):
    """Error for the user: what happened, the file or value that caused it, and what to do about it."""


# ComfyUI shows an exception's qualified name before its text, and this module's name contains the pack's path.
HiggsError.__module__ = "builtins"


def _again(*args: object) -> HiggsError:
    return HiggsError(*args)


copyreg.pickle(HiggsError, lambda error: (_again, error.args))  # pickle would look for the class in builtins

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _LINE
_REPR.maxlevel = 2


def shown(value: object) -> str:
    """Return a value's repr for a message: one line, truncated to 80 characters at any length or depth."""
    text = _REPR.repr(value)
    return text if len(text) <= _LINE else f"{text[: _LINE - 3]}..."


def shown_name(name: str) -> str:
    """Return a name for a message: unchanged, or as by `shown` if it is long or not printable on one line."""
    return name if len(name) <= _LINE and name.isprintable() else shown(name)


def listed(names: Sequence[str], most: int = LISTED) -> str:
    """Format names for a message as "a", "a and b" or "a, b and c", or `most` of them and the number of others."""
    some = some_of(names, most)
    return " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:])))


def some_of(names: Sequence[str], most: int = LISTED) -> list[str]:
    """Return the first names for a message, and the number of others."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return [*map(shown_name, names[:most]), *more]


def few(sentences: Iterable[str], most: int = 20) -> tuple[str, ...]:
    """Return the distinct sentences. If there are more than `most`, the last entry counts the rest."""
    distinct = list(dict.fromkeys(sentences))
    return tuple(
        distinct if len(distinct) <= most else [*distinct[:most], f"And {len(distinct) - most:,} more like this."]
    )
