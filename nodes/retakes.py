"""The widget `retakes` of nodes that speak one text: which sentences to take again, and how often."""

from __future__ import annotations

import re

from comfy_api.latest import io

from ..engine import HiggsError

_ENTRY = re.compile(r"\s*([1-9]\d{0,5})\s*:\s*(\d{1,4})\s*", re.ASCII)  # sentence, from 1: how often
_SHOWN = 40  # most characters of a wrong entry in a message


def retakes_input() -> io.Input:
    """The retakes widget. Comes last, like every new widget: workflows store them by position."""
    return io.String.Input(
        "retakes",
        default="",
        optional=True,
        advanced=True,
        placeholder="3:1, 7:2",
        tooltip="Sentences to take again with another seed while the rest stays. 3:1, 7:2 takes the third sentence "
        "again once, and the seventh twice. The player's button fills this in, and another text or seed clears it. "
        "Clear it yourself if you change the voice.",
    )


def read_retakes(text: str) -> dict[int, int]:
    """Return sentence, from 0 -> how often it is taken again. Raises HiggsError for anything else."""
    retakes: dict[int, int] = {}
    for entry in text.split(",") if text.strip() else ():
        if not (match := _ENTRY.fullmatch(entry)):
            raise HiggsError(
                f"retakes has {entry.strip()[:_SHOWN]!r}. Enter the number of a sentence and how often to take it "
                "again, such as 3:1, 7:2, or clear it."
            )
        sentence, times = map(int, match.groups())
        retakes[sentence - 1] = times
    return {sentence: times for sentence, times in retakes.items() if times}
