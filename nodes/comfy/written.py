"""Track whether a node's output files are unchanged. ComfyUI runs a node again if `fingerprint_inputs` changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable


class Written:
    """Numbers for `fingerprint_inputs`. Each changes only when someone other than the node changes its output.

    `key` identifies the request.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, tuple[Callable[[], object], object]] = {}  # how to look, and what was seen
        self._numbers: Counter = Counter()

    def number(self, key: Hashable) -> int:
        """Return the request's number, which changes if its output is gone or modified."""
        if key in self._left:
            look, seen = self._left[key]
            if look() != seen:
                del self._left[key]
                self._numbers[key] += 1
        return self._numbers[key]

    def leave(self, key: Hashable, look: Callable[[], object], changed: bool = False) -> None:
        """Remember what `look` sees now.

        changed: the node wrote something. If the output of the same request was still in place, then the inputs behind
        links differ. ComfyUI may hold results of both, so both must run again.
        """
        if changed and key in self._left:
            self._numbers[key] += 1
        self._left[key] = look, look()
