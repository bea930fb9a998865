"""Checks that files are as nodes left them. ComfyUI reruns a node when `fingerprint_inputs` changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable


class Written:
    """Numbers for `fingerprint_inputs`: one stays the same over the node's own run, and as long as nobody else changes
    what that wrote. `key` stands for what the node was asked for.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, tuple[Callable[[], object], object]] = {}  # how to look, and what was seen
        self._numbers: Counter = Counter()

    def number(self, key: Hashable) -> int:
        """Another one than before where what was left for that key has gone or changed."""
        if key in self._left:
            look, seen = self._left[key]
            if look() != seen:
                del self._left[key]
                self._numbers[key] += 1
        return self._numbers[key]

    def leave(self, key: Hashable, look: Callable[[], object], changed: bool = False) -> None:
        """Remembers what `look` sees now.

        changed: something was written for it. If the same was asked for before and lay there still, it is the inputs
        behind links that differ; ComfyUI may hold results of both, so both must run again.
        """
        if changed and key in self._left:
            self._numbers[key] += 1
        self._left[key] = look, look()
