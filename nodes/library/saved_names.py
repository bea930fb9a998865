"""Names in saved workflows, matched on another machine, where folders, slashes and upper case differ. Reads no disk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

REVISION = re.compile(r"@[0-9a-f]{7,40}$")


def closest(names: Iterable[str], saved: str) -> list[str]:
    """`saved` itself if it is among `names`, else all that share most of their last parts with it, one at least."""
    names = list(names)
    if saved in names:
        return [saved]
    common = {name: _common_tail(name, saved) for name in names}
    most = max([1, *common.values()])
    return [name for name in names if common[name] == most]


def parts_of(name: str) -> list[str]:
    """The parts of a name in lower case, without the revision of a cached repository."""
    return REVISION.sub("", name.replace("\\", "/").strip("/").lower()).split("/")


def _common_tail(one: str, other: str) -> int:
    pairs = zip(parts_of(one)[::-1], parts_of(other)[::-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
