"""Plausible lengths of speech for a text.

Use them only to judge finished speech. The bounds are wide, since speakers differ by a factor of two.
"""

from __future__ import annotations

import math
import re

from ..core.config import FRAME_RATE
from ..core.sequence import Bounds
from .chunking import estimate_seconds, is_syllabic
from .tags import PAUSE_SECONDS, TAG_LIKE, canonical_tag

# Shortest and longest speech as multiples of the estimate. Plain letters: sentences of the embedded checkpoint lie
# between 0.6 and 1.9 (benchmarks/results/takes.json), and a cloned voice may be half or twice as fast.
_PLAIN = (0.4, 2.5)
# Readers of 17 languages say 4 to 9 syllables a second (Coupe et al. 2019, doi 10.1126/sciadv.aaw2594), two thirds to
# one and a half times the English rate. Letters per syllable and syllables per character vary about as much again.
_OTHER = (0.25, 4.0)
_SHORTER, _LONGER = 0.2, 2.0  # tolerance in seconds, for silence at the ends and spelled-out names
_SILENCE = 2.0  # maximum seconds of unrequested silence inside or at the end
_SOUND = 3.0  # maximum seconds of a laugh or a sigh
_PACES = {"very_slow": (1.0, 2.0), "slow": (1.0, 1.6), "fast": (0.7, 1.0), "very_fast": (0.5, 1.0)}
_ALPHABETS = re.compile("[\u00aa-\u024f\u0370-\u052f\u1e00-\u1fff]")  # Latin with marks, Greek, Cyrillic
_SILENT = re.compile(r"(?:[^\w\s]|_|\s)+")  # signs may or may not be read
_NUMBER = re.compile(r"\d[\d,.]*\d")
_FEW = 0.05  # share of letters; tolerates a foreign name


def bounds_of(text: str) -> Bounds:
    """Return the bounds for speech of `text`. In scripts of unknown pace, only silence is bounded."""
    words = TAG_LIKE.sub(" ", text)
    tags = [tag for match in TAG_LIKE.finditer(text) if (tag := canonical_tag(match[0]))]
    pauses = 2 * sum(PAUSE_SECONDS.get(tag, 0.0) for tag in tags)
    rates = _rates(words)
    if rates is None:
        return Bounds(0, math.inf, _SILENCE + pauses)
    paces = [_PACES[pace] for tag in tags if (pace := tag[2:-2].partition("speed_")[2])]
    least = rates[0] * min([1.0, *(shorter for shorter, _ in paces)])
    most = rates[1] * max([1.0, *(longer for _, longer in paces)])
    sounds = _SOUND * sum(tag.startswith("<|sfx:") for tag in tags)
    shortest = least * estimate_seconds(_SILENT.sub(" ", _NUMBER.sub(_shortened, words)).strip()) - _SHORTER
    longest = most * estimate_seconds(words) + _LONGER + pauses + sounds
    return Bounds(max(0.0, shortest) * FRAME_RATE, longest * FRAME_RATE, _SILENCE + pauses)


def misfit(transcript: str, seconds: float) -> str:
    """Return the reason why a clip of that length cannot match its transcript. Empty if it can."""
    shortest, longest, _ = bounds_of(transcript)
    if seconds * FRAME_RATE < shortest:
        return (
            f"The transcript is too long for {seconds:.1f} s of speech: reading it takes at least "
            f"{shortest / FRAME_RATE:.0f} s. Enter only the words spoken in the clip, or use a longer part of the "
            "recording."
        )
    if seconds * FRAME_RATE > longest:
        return (
            f"The transcript is too short for {seconds:.1f} s of speech: reading it takes at most "
            f"{longest / FRAME_RATE:.0f} s. Enter all words spoken in the clip, or use a shorter part of the "
            "recording."
        )
    return ""


def _shortened(number: re.Match) -> str:
    """Keep at most four digits, since a long number may be read in few words."""
    return "".join(filter(str.isdecimal, number[0]))[:4]


def _rates(words: str) -> tuple[float, float] | None:
    letters = [character for character in words if character.isalpha()]
    others = [character for character in letters if not character.isascii()]
    if len(others) <= _FEW * len(letters):
        return _PLAIN
    unknown = sum(not (_ALPHABETS.match(character) or is_syllabic(character)) for character in others)
    return _OTHER if unknown <= _FEW * len(letters) else None
