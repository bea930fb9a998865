"""A line of the corpus."""

from __future__ import annotations

from dataclasses import dataclass

PAUSES = {"<|prosody:pause|>": 0.7, "<|prosody:long_pause|>": 1.2}  # seconds of silence that a tag asks for


@dataclass(frozen=True)
class Line:
    """A line to speak.

    text: as the model reads it, with tags. parts: spoken in turn, as `phonemes.read` takes them, with pauses[i] seconds
    of silence between parts i and i + 1. stretch: duration over the voice's usual one.
    """

    text: str
    parts: tuple[str, ...]
    pauses: tuple[float, ...] = ()
    stretch: float = 1.0
