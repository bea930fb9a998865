"""Convert sentences to Kokoro's phonemes, with word positions, by espeak-ng.

espeak-ng's library comes with Debian's package libespeak-ng1.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass

from .readings import readable

JOIN = "_"  # between the words that one written word is read as

_UTF8, _IPA_TIED = 1, 0x02 | 0x80 | (0x361 << 8)
_SHORT = {"Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "St.", "a.m.", "p.m."}  # abbreviations, which do not end a sentence
# espeak-ng's IPA -> Kokoro's symbols, as its text front end misaki maps them for American English.
_SPELLED = (
    ("a͡ɪ", "I"), ("a͡ʊ", "W"), ("d͡ʒ", "ʤ"), ("e͡ɪ", "A"), ("t͡ʃ", "ʧ"), ("ɔ͡ɪ", "Y"), ("o͡ʊ", "O"), ("ə͡l", "ᵊl"),
    ("ʔˌn̩", "tᵊn"), ("ʔn̩", "tᵊn"), ("n̩", "ᵊn"), ("l̩", "ᵊl"), ("ɚ", "əɹ"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪ͡ə", "iə"),
    ("ʔ", "t"), ("ɬ", "l"), ("ɾ", "T"), ("ɐ", "ə"), ("ç", "k"), ("x", "k"), ("r", "ɹ"), ("ː", ""), ("ʲ", ""), ("͡", ""),
    ("̃", ""), ("e", "A"), ("o", "ɔ"), ("ɵ", "ə"), ("ɹɹ", "ɹ"),
)  # fmt: skip


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libespeak-ng.so.1")
    rate = library.espeak_Initialize(2, 0, None, 0)
    assert rate > 0, "espeak-ng does not find its data: set ESPEAK_DATA_PATH"
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
    assert library.espeak_SetVoiceByName(b"en-us") == 0, "espeak-ng has no American English"
    return library


def spoken(text: str) -> str:
    """Return the phonemes of `text` without punctuation, words separated by spaces."""
    library = _library()
    held = ctypes.c_char_p(text.encode())
    parts = []
    while held.value:
        part = library.espeak_TextToPhonemes(ctypes.byref(held), _UTF8, _IPA_TIED)
        parts.append((part or b"").decode())
        if not held:
            break
    found = re.sub(r"\([a-z-]*\)|[_-]", "", " ".join(parts))
    for old, new in _SPELLED:
        found = found.replace(old, new)
    return " ".join(found.split())


@dataclass(frozen=True)
class Reading:
    """phonemes: with punctuation; words: index of the symbol at which each word begins."""

    phonemes: str
    words: tuple[int, ...]


def read(text: str) -> Reading:
    """Read a text without tags. Punctuation shapes the delivery, so it stays between the phonemes.

    Words joined by JOIN are what one written word is read as.
    """
    phonemes, starts, clause, is_first = "", [], [], []
    for together in text.split():
        for number, written in enumerate(together.split(JOIN) if together != JOIN else [""]):
            word = readable(written)
            marks = "" if written in _SHORT else re.search(r"[,.!?;:]*\"?[,.!?;:]*$", written)[0]
            clause.append(re.sub(r'[,.!?;:"()]', " ", word))
            is_first.append(number == 0)
            if marks:
                phonemes, starts, clause = _add(phonemes, starts, clause, marks)
    phonemes, starts, _ = _add(phonemes, starts, clause, "")
    return Reading(phonemes, tuple(start for start, first in zip(starts, is_first, strict=True) if first))


def _add(before: str, starts: list[int], clause: list[str], marks: str) -> tuple[str, list[int], list[str]]:
    """Append a clause and the marks after it to the phonemes and word starts."""
    said = spoken(" ".join(clause))
    before += " " * bool(before and said)
    starts = [*starts, *(len(before) + at for at in _places(said, clause))]
    return before + said + marks[:1].replace('"', ""), starts, []


@functools.lru_cache(200_000)
def _alone(word: str) -> tuple[int, ...]:
    """Return the number of symbols of each part of a word on its own."""
    return tuple(map(len, spoken(word).split())) or (0,)


def _places(said: str, clause: list[str]) -> list[int]:
    """Return each word's start in `said`.

    espeak-ng joins some words, so the words' own lengths are aligned with the joined ones at least cost.
    """
    parts, own = said.split(" "), [(i, size) for i, word in enumerate(clause) for size in _alone(word)]
    begins = [0]
    for part in parts:
        begins.append(begins[-1] + len(part) + 1)
    best: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}
    for done in range(1, len(parts) + 1):
        for used in range(done, len(own) + 1):
            ways = (
                (best[done - 1, used - n][0] + abs(sum(s for _, s in own[used - n : used]) - len(parts[done - 1])), n)
                for n in (1, 2, 3)
                if (done - 1, used - n) in best
            )
            if found := min(ways, default=None):
                best[done, used] = found
    places: list[int | None] = [None] * len(clause)
    if (len(parts), len(own)) not in best:  # more parts than words: by their lengths alone
        whole, passed = max(1, sum(size for _, size in own)), 0
        for i, size in own:
            places[i] = passed * len(said) // whole if places[i] is None else places[i]
            passed += size
        return [place or 0 for place in places]
    done, used = len(parts), len(own)
    while done:
        count = best[done, used][1]
        group = own[used - count : used]
        whole, passed = max(1, sum(size for _, size in group)), 0
        for i, size in group:
            at = begins[done - 1] + passed * len(parts[done - 1]) // whole
            places[i] = at if places[i] is None else min(places[i], at)
            passed += size
        done, used = done - 1, used - count
    return [place or 0 for place in places]
