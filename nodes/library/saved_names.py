"""Match names in workflows from another machine, where folders, slashes and case differ."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

from ...engine import HiggsError

REVISION = re.compile(r"@[0-9a-f]{7,40}$")


def closest(names: Iterable[str], saved: str) -> list[str]:
    """Return `saved` if it is among `names`, else all names that share the most trailing parts, at least one."""
    names = list(names)
    if saved in names:
        return [saved]
    common = {name: _common_tail(name, saved) for name in names}
    most = max([1, *common.values()])
    return [name for name in names if common[name] == most]


def the_one(names: Iterable[str], saved: str, kind: str, missing: str) -> str:
    """Return the name closest to `saved`. Raises HiggsError with `missing` if none matches, and if several do."""
    matches = closest(names, saved)
    if not matches:
        raise HiggsError(missing)
    if len(matches) > 1:
        raise HiggsError(
            f"more than one {kind} matches {saved[:80]!r}: {' and '.join(matches)}. Choose one from the list."
        )
    return matches[0]


def as_name(value: object, kind: str) -> str:
    """Return a name from a workflow. Raises HiggsError for anything else, which only a workflow made by hand has."""
    if not isinstance(value, str):
        raise HiggsError(f"the name of a {kind} is {str(value)[:40]!r}. It must be a string.")
    return value


def parts_of(name: str) -> list[str]:
    """Split a name into parts, in lower case and without the revision of a cached repository."""
    return REVISION.sub("", name.replace("\\", "/").strip("/").lower()).split("/")


def _common_tail(one: str, other: str) -> int:
    pairs = zip(parts_of(one)[::-1], parts_of(other)[::-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
