"""Mouth shapes for lip sync, by the sounds of words and their times. The nine shapes are those of Rhubarb Lip Sync."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.config import SAMPLE_RATE
from .boundaries import LEAST_PAUSE
from .phonemes import languages_of, phonemes_of
from .word import Word

OPENNESS = {"A": 0.0, "B": 0.2, "C": 0.5, "D": 1.0, "E": 0.4, "F": 0.25, "G": 0.1, "H": 0.7, "X": 0.0}
_HELD = LEAST_PAUSE / SAMPLE_RATE  # seconds between words in which the mouth stays as it is
_REST = 0.35  # seconds of a pause from which on the mouth rests; before, it only closes

Sounds = list[tuple[str, float]]  # shapes and weights

# Shapes -> the letters of IPA, of vowels and of consonants. Marks, and sounds that any mouth can make, have no shape.
_VOWELS_HEARD = {"B": "iɪyʏɨᵻ", "C": "eɛæəɐʌɘ", "D": "aɑä", "E": "ɔoɒɜɚɝœøɵɤ", "F": "uʊɯʉ"}
_CONSONANTS_HEARD = {"A": "pbm", "B": "tdnszʃʒθðkɡgŋɹrɾʁʀxɣçjɲɕʑcɟqχʂʐɖʈ", "F": "wʍɥβ", "G": "fvɱʋ", "H": "lɫɭʎ"}
_HEARD = {letter: (shape, 2.0) for shape, letters in _VOWELS_HEARD.items() for letter in letters}
_HEARD |= {letter: (shape, 1.0) for shape, letters in _CONSONANTS_HEARD.items() for letter in letters}

# Shapes -> letters. A diphthong has two shapes.
_VOWELS = {
    "B": "i ie ee ea y ui", "C": "e ae", "D": "a aa", "E": "o oe eu au aw", "F": "u oo ue ew uu",
    "CB": "ai ay ei ey", "DB": "igh", "EB": "oi oy", "EF": "oa ou ow eau",
}  # fmt: skip
_CONSONANTS = {
    "A": "p b m", "B": "c d g j k n q r s t x z ch ck dg sch sh tch th tz", "F": "w wh", "G": "f v ph", "H": "l",
    "BF": "qu", "": "h gh",
}  # fmt: skip
_SOUNDS = {letters: (shapes, 2.0) for shapes, every in _VOWELS.items() for letters in every.split()}
_SOUNDS |= {letters: (shapes, 1.0) for shapes, every in _CONSONANTS.items() for letters in every.split()}
_KNOWN = "|".join(sorted(_SOUNDS, key=len, reverse=True))
_PARTS = re.compile(rf"{_KNOWN}|\d|[^\W_a-z]{{1,2}}")
_DOUBLED = re.compile(r"([b-df-hj-np-tv-z])\1")
_SYLLABLE = [("B", 1.0), ("C", 2.0)]  # where letters are not read: nearly closed, then open

# Other letters in Latin ones: scripts with a letter for a sound, and what is more than a letter with a mark.
_LATIN = {
    **dict(zip("абвгдеёжзийклмнопрстуфхцчшщъыьэюяіїєґў", "abvgdeojziiklmnoprstufkccss i euaiiegu", strict=True)),
    **dict(zip("αβγδεζηθικλμνξοπρσςτυφχψω", "avgdezitiklmnxoprsstufkpo", strict=True)),
    **{"ä": "e", "ö": "oe", "ü": "u", "ø": "oe", "œ": "oe", "æ": "e", "å": "o", "ı": "i", "ł": "w", "đ": "d"},
    **{"ð": "th", "þ": "th", "っ": "t", "ッ": "t", "を": "o", "ヲ": "o"},
}
_NAMED = ("HIRAGANA LETTER", "KATAKANA LETTER", "HANGUL SYLLABLE")  # Unicode names these by their sound

_C = "[b-df-hj-np-tv-xz]"
_ENGLISH = [  # (pattern, letters that are read instead)
    (rf"\b({_C}*)(?:y|i)\b", r"\1igh"),
    (rf"i({_C})e(?=[sd]?\b)", r"igh\1"),
    (rf"a({_C})e(?=[sd]?\b)", r"ai\1"),
    (rf"(?<!o)o({_C})e(?=[sd]?\b)", r"oa\1"),
    (rf"(?<=[aeiouy]{_C})e(?=s?\b)", ""),
    (r"(?<![aeo])a(?![ailruwy])", "e"),
    (r"\b(h|sh|w|m|b)e\b", r"\1i"),
    (r"\bto\b", "tu"),
    (r"[eiuy]r", "oe"),
    (r"a(?=l[lkt])", "au"),
    (rf"(?<![aeiou])u(?={_C}{{2}}|[bdfgmnpstx]\b)", "e"),
]


@dataclass(frozen=True)
class MouthCue:
    """A mouth shape and when it is seen, in seconds."""

    start: float
    end: float
    shape: str


@dataclass(frozen=True)
class Mouth:
    """Mouth shapes of a sound of so many seconds, without gaps. method: phonemes, letters, syllables, or several."""

    cues: tuple[MouthCue, ...]
    seconds: float
    method: str

    def to_json(self) -> str:
        """Return the JSON of Rhubarb Lip Sync, in milliseconds' precision, and the method in its metadata."""
        cues = [{"start": round(cue.start, 3), "end": round(cue.end, 3), "value": cue.shape} for cue in self.cues]
        metadata = {"soundFile": "", "duration": round(self.seconds, 3), "method": self.method}
        return json.dumps({"metadata": metadata, "mouthCues": cues})

    def frames(self, fps: float) -> list[str]:
        """Return the shape in the middle of each frame."""
        starts, count = [cue.start for cue in self.cues], math.ceil(round(self.seconds * fps, 6))
        return [self.cues[bisect_right(starts, (frame + 0.5) / fps) - 1].shape for frame in range(count)]


def mouth_of(words: Iterable[Word], seconds: float) -> Mouth:
    """Return the mouth shapes of a sound of that many seconds. Where words overlap, the later one waits."""
    words = sorted(words, key=lambda word: word.start)
    languages = languages_of(word.text for word in words)
    phonemes = phonemes_of(languages)
    marks, methods, at = [(0.0, "X")], set(), 0.0
    for word in words:
        start, end = max(word.start, at), min(word.end, seconds)
        if end <= start:
            continue
        if at and start - at > _HELD:
            marks.append((at, "A" if start - at < _REST else "X"))
        sounds, method = _heard_in(phonemes.get(word.text, ())), "phonemes"
        if not sounds:
            sounds, method = _sounds_of(word.text, languages[word.text] == "English")
        methods.add(method)
        whole, passed = sum(weight for _, weight in sounds), 0.0
        for shape, weight in sounds:
            marks.append((start + (end - start) * passed / whole, shape))
            passed += weight
        at = end
    marks = [*marks, (at, "X")] if at < seconds else marks
    changes = [mark for number, mark in enumerate(marks) if not number or mark[1] != marks[number - 1][1]]
    ends = [*(start for start, _ in changes[1:]), seconds]
    cues = (MouthCue(start, end, shape) for (start, shape), end in zip(changes, ends, strict=True) if start < end)
    return Mouth(tuple(cues), seconds, " and ".join(sorted(methods)))


def _heard_in(phonemes: Iterable[str]) -> Sounds:
    """Return the sounds of phonemes. The parts of a diphthong or an affricate share its weight."""
    sounds: Sounds = []
    for phoneme in phonemes:
        parts = [_HEARD[letter] for letter in phoneme if letter in _HEARD]
        sounds += [(shape, weight / len(parts)) for shape, weight in parts]
    return sounds


def _sounds_of(word: str, is_english: bool) -> tuple[Sounds, str]:
    """Return the (shape, weight) of a word's sounds, longer ones with more weight, and how they were found."""
    read = "".join(map(_latin, unicodedata.normalize("NFKC", word).casefold()))
    for pattern, letters in _ENGLISH if is_english else ():
        read = re.sub(pattern, letters, read)
    sounds, method = [], "letters"
    for part in _PARTS.finditer(_DOUBLED.sub(r"\1", read)):
        if part[0] in _SOUNDS:
            shapes, weight = _SOUNDS[part[0]]
            sounds += [(shape, weight / len(shapes)) for shape in shapes]
        else:
            sounds += _SYLLABLE
            method = "syllables"
    return (sounds, method) if sounds else (_SYLLABLE, "syllables")


def _latin(character: str) -> str:
    """Return a character in Latin letters, or without its marks if it has none."""
    base, name = unicodedata.normalize("NFD", character)[0], unicodedata.name(character, "")
    if known := _LATIN.get(character, _LATIN.get(base)):
        return known
    if name.startswith(_NAMED):
        return name.split()[-1].lower().replace("eo", "o").replace("eu", "i")
    return "" if unicodedata.category(character) in ("Mn", "Mc", "Lm") else base
