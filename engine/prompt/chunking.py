"""Duration estimates, and splitting of long text into chunks.

Durations are estimated from reading speeds: about 15 characters per second in alphabetic scripts (150 to 180 English
words a minute), and about 4.5 if a character is a syllable or a word (Chinese, Japanese, Korean). Speakers differ by a
factor of two, so use estimates for chunks and progress, never to stop speech.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from array import array
from itertools import accumulate, pairwise

from ..core.config import FRAME_RATE
from .said import Respelling
from .script import Pause, Script
from .tags import PAUSE_SECONDS, TAG_LIKE, canonical_tag, delivery_slot
from .wrapped import MARKS

LETTER_SECONDS = 1 / 15
SYLLABLE_SECONDS = 1 / 4.5
DIGIT_SECONDS = 4 * LETTER_SECONDS  # read as a word

_UNSPACED = "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_SYLLABIC = f"{_UNSPACED}\uac00-\ud7a3"  # Korean has spaces
_SYLLABIC_CHARACTER = re.compile(f"[{_SYLLABIC}]")
CLOSERS = "\"'”’»›)\\]}」』）】》〉］｝"
_OPENERS = "(\\[{“‘«‹「『（【《〈［｛¿¡"
# Placeholders for each character of a tag. They keep positions, and hide the tag from other rules.
_TAG, _PAUSE = "\ue000", "\ue001"
_NOT_OURS = str.maketrans(_TAG + _PAUSE, "\ue002\ue002")

# Sentence ends. A Latin stop needs white space after it, which keeps 3.14 and example.org whole. Repeats are bounded to
# avoid quadratic time on long runs of signs; the last ones decide anyway.
STOPS = "。！？｡؟।॥۔።፧։။។‼⁇⁈⁉"
_SENTENCE = re.compile(
    rf"(?:(?P<stop>[.!?…]{{1,100}})[{CLOSERS}]{{0,100}}(?=[\s{_TAG}{_PAUSE}]|$)"
    rf"|(?:[{STOPS}]|．(?!\d))[.!?…{STOPS}{CLOSERS}]{{0,100}}(?![.!?…{STOPS}{CLOSERS},;:、，；：]))"
    rf"(?:\s*{_PAUSE}+)*\s*|\n\s*"
)
# Text is cut by the first of these that makes pieces short enough.
_CLAUSE = re.compile(rf"[,;:—–…][{CLOSERS}]*\s+|—(?=\w)|(?:[、，；：،؛፣]|……)[{CLOSERS}]*\s*")
# Signs and line ends without which neither of them cuts.
_MAY_END = {False: re.compile(rf"[\n.!?…．{STOPS}]"), True: re.compile(rf"[\n.!?…．{STOPS},;:—–、，；：،؛፣]")}
_SPACE = re.compile(r"\s+")
_JOINED = rf"\s{CLOSERS}、，；：。！？…,;:.!?ーぁぃぅぇぉっゃゅょァィゥェォッャュョ"  # to the syllable before
_SYLLABLE = re.compile(rf"(?<=[{_SYLLABIC}])(?![{_JOINED}])")
_SIGN = re.compile(rf"(?<=[^\w\s{MARKS}]|_)(?=[^\W_])")  # in an address or a path
_LETTER = re.compile("")
# Signs stay with a word: a cut needs a letter or a digit before the next space.
_WORD = re.compile(
    rf"(?:\s+|(?<=[{_UNSPACED}])(?![{_JOINED}])"
    rf"|(?<=[^\W{_UNSPACED}]|[」』）】》〉］｝、，；：。！？…])(?=[{_UNSPACED}「『（【《〈［｛]))(?=\S*[^\W_])"
)
_LEVELS = (_CLAUSE, _SPACE, _SYLLABLE, _SIGN, _LETTER)

# A full stop after these never ends a sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof st sr jr rev hon gen capt cmdr lt sgt pres gov sen rep vs cf al approx dept univ ave blvd "
    "inc ltd bzw bspw evtl ggf inkl mme mlle sra srta dra".split()
)
# Nor after these if a number follows: "No. 5", "Fig. 2", "Jan. 7".
_NUMBERED = frozenset("no nos nr vol ch fig figs eq p pp ca jan feb mar apr jun jul aug sep sept oct nov dec".split())
_WORD_BEFORE = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$")
_NEXT_SAID = re.compile(rf"[\s{_TAG}{_PAUSE}{_OPENERS}]*(.?)", re.DOTALL)
_BEFORE_LETTER = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")  # vowels of Thai and Lao
_BEHIND_LETTER = frozenset("\u0e2f\u0e30\u0e32\u0e33\u0e45\u0e46\u0eb0\u0eb2\u0eb3\u0ec6")
_VIRAMA = 9  # combining class of what joins letters of Indic scripts and of Khmer
_LEADING_TAG = re.compile(rf"\s*({TAG_LIKE.pattern})")


def is_syllabic(character: str) -> bool:
    """True for a character that is a syllable or a word, in a script without spaces."""
    return _SYLLABIC_CHARACTER.match(character) is not None


@functools.lru_cache(maxsize=32)  # a request asks several times
def estimate_seconds(text: str) -> float:
    """Estimate the seconds of speech. Tags are silent except for pauses."""
    return sum(_seconds_each(text, _mask(text)))


def estimate_frames(text: str) -> int:
    """Estimate the codec frames of speech. At least a second, since speech begins and ends in silence."""
    return max(FRAME_RATE, math.ceil(estimate_seconds(text) * FRAME_RATE))


def split_text(text: str, seconds_per_chunk: float) -> list[str]:
    """Split text into chunks of at most about `seconds_per_chunk` estimated seconds; 0 or less never splits.

    Cuts at sentence ends, in overlong sentences at clauses, then spaces, then between characters; never inside a tag.
    A chunk repeats the delivery tags (emotion, style, speed, pitch, expressive) that its paragraph set in an earlier
    chunk. Blank lines separate paragraphs. Apart from those tags and white space, the joined chunks equal the text.
    Blank text returns one empty chunk.
    """
    return split_script(Script(text), seconds_per_chunk)[0]


def split_script(script: Script, seconds_per_chunk: float, first: float = math.inf) -> tuple[list[str], list[float]]:
    """Split like `split_text`, and at every pause between words.

    Returns (chunks, seconds of silence before each and after the last). first: maximum seconds of the first chunk, if
    the text is split and its first sentence is not longer. Pauses without a word between them are merged: written ones
    are summed, else one paragraph gap remains.
    """
    text, limit = script.text, seconds_per_chunk if seconds_per_chunk > 0 else math.inf
    if not script.pauses and estimate_seconds(script.spoken_text) <= limit:
        return [text.strip()], [0.0, 0.0]
    cutter = Cutter(text, limit, script, first)
    chunks = cutter.chunks()
    carried = cutter.carried([start for start, _ in chunks])
    silences = [cutter.silence(start) for start, _ in chunks] + [cutter.silence(len(text))]
    return [tags + text[start:end].strip() for tags, (start, end) in zip(carried, chunks, strict=True)], silences


def split_sentences(text: str) -> list[str]:
    """Return a text's sentences without tags. Wordless ones are dropped."""
    sentences = Cutter(text, math.inf).sentences
    stripped = (" ".join(TAG_LIKE.sub(" ", text[start:end]).split()) for start, end in pairwise(sentences))
    return [sentence for sentence in stripped if any(map(str.isalnum, sentence))]


def sentence_texts(text: str) -> list[str]:
    """Return a chunk's sentences to be spoken one by one, each with the delivery tags that are in force there.

    They are the sentences of `split_sentences`.
    """
    cutter = Cutter(text, math.inf)
    texts = [text[start:end].strip() for start, end in pairwise(cutter.sentences)]
    tagged = zip(cutter.carried(cutter.sentences[:-1]), texts, strict=True)
    return [tags + one for tags, one in tagged if any(map(str.isalnum, TAG_LIKE.sub(" ", one)))]


def split_words(sentence: str) -> list[str]:
    """Return the words of one of `split_sentences`, with their punctuation.

    In Chinese and Japanese each character is a word. Scripts that have neither spaces nor such characters, like Thai,
    are split at spaces too.
    """
    words = _WORD.split(sentence)
    if len(words) > 1 and not any(map(str.isalnum, words[0])):
        words[:2] = [" ".join(words[:2])]
    return words


def may_end(text: str, clauses: bool) -> bool:
    """False if a text certainly is one sentence, or, with `clauses`, one clause. Much faster than cutting it."""
    return _MAY_END[clauses].search(text) is not None


def leading_tags(text: str, start: int = 0) -> dict[str, str]:
    """Return the delivery tags at a position, by slot."""
    tags = {}
    while match := _LEADING_TAG.match(text, start):
        if slot := delivery_slot(match[1]):
            tags[slot] = match[1]
        start = match.end()
    return tags


def _mask(text: str) -> str:
    def stand_in(match: re.Match) -> str:
        return (_PAUSE if canonical_tag(match[0]) in PAUSE_SECONDS else _TAG) * len(match[0])

    return TAG_LIKE.sub(stand_in, text.translate(_NOT_OURS))


def _seconds_each(text: str, masked: str, respellings: tuple[Respelling, ...] = ()) -> list[float]:
    # A pause tag's seconds all lie on its first character, and those of a respelling.
    known = {character: _character_seconds(character) for character in set(masked)}
    seconds = [known[character] for character in masked]
    for one in respellings:
        seconds[one.start : one.stop] = [0.0] * (one.stop - one.start)
        seconds[one.start] = estimate_seconds(one.spelling)
    for match in TAG_LIKE.finditer(text):
        seconds[match.start()] = PAUSE_SECONDS.get(canonical_tag(match[0]) or "", 0.0)
    return seconds


def _character_seconds(character: str) -> float:
    if character.isascii():
        return DIGIT_SECONDS if character.isdigit() else LETTER_SECONDS
    if character in (_TAG, _PAUSE) or unicodedata.category(character) in ("Mn", "Cf"):
        return 0.0
    if _SYLLABIC_CHARACTER.match(character):
        return SYLLABLE_SECONDS
    return LETTER_SECONDS


def _gaps(masked: str) -> tuple[array[int], array[int]]:
    """Return, for each position, the start of the white space before it, and the end of that after it."""
    starts, stops = array("q", range(len(masked) + 1)), array("q", range(len(masked) + 1))
    for gap in _SPACE.finditer(masked):
        start, stop = gap.span()
        for at in range(start, stop):
            starts[at + 1], stops[at] = start, stop
    return starts, stops


class Cutter:
    """Finds the cuts of one text. Positions are indices into the text; a cut at p begins a chunk with text[p]."""

    def __init__(self, text: str, limit: float, script: Script | None = None, first: float = math.inf):
        self._text, self._limit, self._first = text, limit, first
        self._masked = masked = _mask(text)
        respelled = script.respellings if script else ()
        self._inside = {at for one in respelled for at in range(one.start + 1, one.stop)}  # where no cut may be
        # Arrays, since a list takes four times the memory, and a book may be one paragraph.
        seconds = _seconds_each(text, masked, respelled)
        self._time = array("d", accumulate(seconds, initial=0.0))  # seconds before each position
        self._spoken = array("q", accumulate(map(str.isalnum, masked), initial=0))  # letters before each position
        self._gap_starts, self._gap_stops = _gaps(masked)
        self._silences = self._breaks(script) if script else {}  # by cut; may include both ends of the text
        words = {self._spoken[cut] for cut in self._silences}
        whole = script.joined if script else ()
        sentence_ends = self._cuts(_SENTENCE, 0, len(text))
        cuts = [cut for cut in sentence_ends if self._spoken[cut] not in words and cut not in whole]
        self.sentences = sorted({0, *cuts, *self._silences, len(text)})  # starts, and the end of the text

    def clauses(self) -> list[int]:
        """Return the starts of all clauses, and the end of the text."""
        inner = (cut for start, end in pairwise(self.sentences) for cut in self._cuts(_CLAUSE, start, end))
        return sorted({*self.sentences, *inner})

    def silence(self, cut: int) -> float:
        """Return the seconds of silence before a chunk, or at the text's end."""
        return self._silences.get(cut, 0.0)

    def _breaks(self, script: Script) -> dict[int, float]:
        together: dict[int, list[Pause]] = {}  # by number of letters before them
        for pause in script.pauses:
            together.setdefault(self._spoken[pause.at], []).append(pause)
        silences = {}
        for spoken, pauses in together.items():
            written = [pause.seconds for pause in pauses if pause.is_written]
            cut = 0 if spoken == 0 else len(self._text) if spoken == self._spoken[-1] else pauses[-1].at
            if written or cut not in (0, len(self._text)):
                silences[cut] = sum(written) if written else pauses[0].seconds
        return silences

    def chunks(self) -> list[tuple[int, int]]:
        units = []
        for start, end in pairwise(self.sentences):
            units += self._refine(start, end, 0)
        packed = self._pack(units, self._limit)
        # The smallest limit with the same number of chunks balances them, so that none has just a word or two.
        low, high = 0.0, self._limit
        for _ in range(12):
            middle = (low + high) / 2
            trial = self._pack(units, middle)
            if len(trial) <= len(packed):
                packed, high = trial, middle
            else:
                low = middle
        return packed

    def carried(self, starts: list[int]) -> list[str]:
        """Return, for each chunk, its paragraph's earlier delivery tags that it does not override."""
        inherited, active, waiting = [], {}, list(reversed(starts))
        for sentence, following in pairwise(self.sentences):
            if self._text.count("\n", self._gap_starts[sentence], sentence) > 1:  # opens a paragraph
                active = {}
            own = leading_tags(self._text, sentence)
            if waiting and waiting[-1] == sentence:
                waiting.pop()
                inherited.append("".join(tag for slot, tag in active.items() if slot not in own))
            active = active | own
            while waiting and waiting[-1] < following:  # chunks that begin inside this sentence
                waiting.pop()
                inherited.append("".join(active.values()))
        return inherited

    def _refine(self, start: int, end: int, level: int) -> list[tuple[int, int]]:
        if self._time[end] - self._time[start] <= self._limit or level == len(_LEVELS):
            return [(start, end)]
        edges = [start, *self._cuts(_LEVELS[level], start, end), end]
        return [unit for left, right in pairwise(edges) for unit in self._refine(left, right, level + 1)]

    def _cuts(self, pattern: re.Pattern, start: int, end: int) -> list[int]:
        """Return the match ends inside (start, end) that allow a cut, with words on both sides."""
        cuts, last = [], start
        for match in pattern.finditer(self._masked, start, end):
            cut = match.end()
            if (
                self._spoken[last] < self._spoken[cut] < self._spoken[end]
                and self._may_cut(cut)
                and not (match.groupdict().get("stop") and self._goes_on(match))
            ):
                cuts.append(cut)
                last = cut
        return cuts

    def _may_cut(self, cut: int) -> bool:
        # A tag stays with the text after it, a pause with the text before. This also keeps cuts out of tags.
        before = self._masked[max(0, self._gap_starts[cut] - 1)]
        if before == _TAG or cut in self._inside or self._masked.startswith(_PAUSE, self._gap_stops[cut]):
            return False
        # Combining marks and vowel signs stay with their letter. Joiners (emoji, Indic scripts) bind both sides.
        last, following = self._masked[cut - 1], self._masked[cut]
        is_bound = last in _BEFORE_LETTER or following in _BEHIND_LETTER or unicodedata.combining(last) == _VIRAMA
        return not (is_bound or unicodedata.category(following)[0] == "M" or "\u200d" in (last, following))

    def _goes_on(self, stop: re.Match) -> bool:
        # True if the sentence continues: before a lower-case letter, or after an abbreviation or a short number.
        if "\n" in stop[0]:
            return False
        following = _NEXT_SAID.match(self._masked, stop.end())
        after = following[1] if following else ""
        if after.islower():
            return True
        word = _WORD_BEFORE.search(self._masked, max(0, stop.start() - 40), stop.start())
        if stop["stop"] != "." or word is None:
            return False
        name = word[0].casefold()
        return (
            name in _ABBREVIATIONS
            or (name in _NUMBERED and after.isdigit())
            or "." in name  # e.g., U.S., p.m.
            or (len(name) == 1 and word[0].isupper())  # initials
            or (len(name) < 3 and name.isdigit())  # "1. First", German "am 3. Mai"
        )

    def _pack(self, units: list[tuple[int, int]], limit: float) -> list[tuple[int, int]]:
        packed = [units[0]]
        for start, end in units[1:]:
            first, most = packed[-1][0], limit if len(packed) > 1 else min(limit, self._first)
            if start not in self._silences and self._time[end] - self._time[first] <= most:
                packed[-1] = (first, end)
            else:
                packed.append((start, end))
        return packed
