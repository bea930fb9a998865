"""Speaker names at the start of script lines, in the ways people write them. Judges single lines only."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from .directions import direction_lines
from .script import is_pause, read_pauses
from .tags import TAG_VALUES, is_spoken, stage_directions
from .wrapped import MARKS, begun, without_invisible


class Form(Enum):
    """Notation that separates a name from the text."""

    COLON = 1  # or angle brackets
    BRACKET = 2  # [Anna]
    DASH = 3
    ALONE = 4  # on its own line above, as in screenplays
    LOOSE = 5  # other signs, which begin a turn only for a speaker known otherwise


@dataclass(frozen=True)
class Start:
    """A possible start of a turn. settings: raw text from its brackets. manner: text in parentheses."""

    name: str
    text: str  # rest of the line
    form: Form = Form.COLON
    settings: tuple[str, ...] = ()
    manner: str = ""
    is_bold: bool = False

    @property
    def key(self) -> str:
        return speaker_key(self.name)


class ParsedLine(NamedTuple):
    """A line of a script with its possible start.

    is_neutral: needs no speaker, since it is wordless, a heading or a direction. is_direction: all in brackets.
    """

    text: str
    start: Start | None
    is_neutral: bool
    is_direction: bool


@functools.lru_cache(1024)
def speaker_key(name: str) -> str:
    key = " ".join(without_invisible(name).replace("_", " ").split()).casefold()
    numbered = re.fullmatch(r"(?:speaker|s)?\s*(\d+)", key)
    return numbered[1] if numbered else key


_LOOK = 240  # characters of a line that expressions see
_LONGEST_NAME = 40
_NOT_LAST = frozenset("_.'’&/-")  # of a name alone on its line
NAME = rf"[^\W_][\w{MARKS}.'’&/-]*(?: [\w&][\w{MARKS}.'’&/-]*){{0,3}}"
_NAME = rf"(?P<name>{NAME})"
_MANNER = r"(?:\s*[(\[](?P<manner>[^()\[\]|]{1,60})[)\]])?"
_BRACKET = re.compile(rf"\[\s*{_NAME}{_MANNER}\s*(?P<settings>(?:\|[^\[\]|]*)*)\]\s*:?\s*")
_ANGLE = re.compile(rf"<\s*{_NAME}{_MANNER}\s*>\s*:?\s*")
_COLON = re.compile(rf"{_NAME}{_MANNER}(?:\s*(?::(?=\s|$)|：)|(?P<tight>:(?=[^\W\d_]|[\"“‘'«„¿¡])))\s*")
_DASH = re.compile(rf"{_NAME}{_MANNER}(?:\s+--?|\s*[–—])\s+(?=\S)")
_ALONE = re.compile(_NAME + _MANNER)
_TIME = re.compile(r"[\[(]?\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,3})?[\])]?(?:\s+[-–—])?\s+(?=\S)")
_LOOSE = (
    re.compile(rf"{_NAME}{_MANNER}(?:\s*[;|>~=→]\s+|\s*\t\s*|[–—]+(?=\S))"),  # Ben | Hi.
    re.compile(rf"{_NAME}\s*[(\[](?P<manner>[^()\[\]|]{{1,60}})[)\]]\s+(?=\S)"),  # Ben (softly) Hi.
    re.compile(rf"[({{*_\"“„«'‘]{{1,3}}\s*{_NAME}\s*[)}}*_\"”“»'’]{{1,3}}\s*(?::|[-–—]+(?=\s))?(?:\s+|$)"),  # (Ben) Hi.
    re.compile(rf"@(?P<name>[^\W_][\w{MARKS}'’&/-]*)\s*[,:]?\s+(?=\S)"),  # @Ben Hi.
)
_CAPITALS = re.compile(rf"(?P<name>[^\W\d_][\w'’&/-]+(?: [\w&][\w'’&/-]*){{0,3}}){_MANNER}\.(?:\s+|$)")  # BEN. Hi.
_LIST = re.compile(r"(?:[-*+•·–—]|>{1,2}|\d{1,3}[.)])\s+(?=\S)")  # also quoted mail
# Bold and italics: **Anna:**, or **Anna** (softly):
_MARKED = re.compile(
    r"(\*{1,3}|_{1,3})(?=[^\s*_])(.{1,90}?)(?:([:：])\s*\1(?![*_])|(?<!\s)\1(?![*_])(?=\s*(?:[:：(\[–—-]|$)))"
)
_QUOTED = re.compile(rf"[\"“„'‘«]{_NAME}[\"”“'’»](?=\s*[:：])")
_HEADING = re.compile(
    r"(?:(?:chapter|part|act|scene|book|canto|kapitel|teil|szene|akt|chapitre|capítulo|capitolo)\s+(?:\d+|[ivxlc]+|one|"
    r"two|three|four|five|six|seven|eight|nine|ten)\b|(?:int|ext)\.|fade (?:in|out)\b|cut to\b|the end\b)",
    re.IGNORECASE,
)
_ROMAN = re.compile(r"X{0,3}(?:IX|IV|V?I{0,3})")  # chapter numbers
_SMALL = frozenset("and da de del der di la le of the van von y".split())  # words inside names
_MARKUP = frozenset("B I U S P BR HR EM STRONG SPAN DIV SPEAK BREAK VOICE".split())
# What begins a sentence rather than a turn: "Listen: it is late", "Step 1: open the box". A declared name still counts.
_SAID = re.compile(
    r"(?:listen|look|see|wait|now|remember|note|notes|nota bene|n\.?b\.?|p\.?s\.?|question|answer|tip|hint|warning|"
    r"caution|attention|important|example|for example|fact|result|conclusion|summary|update|reminder|spoiler|"
    r"achtung|hinweis|wichtig|merke|beispiel|frage|antwort|tipp|warnung|fazit|remarque|réponse|exemple|conseil|"
    r"attenzione|domanda|risposta|nota|atención|pregunta|respuesta|consejo|ejemplo|atenção|pergunta|resposta|dica|exemplo|"
    r"внимание|вопрос|ответ|важно|пример|примечание|注意|注|问题|問題|提示|回答|質問|答え|例|참고|주의|질문|대답)"
    r"|(?:step|day|week|month|year|lesson|tip|rule|question|answer|example|item|point|section|figure|table|note|option|"
    r"problem|exercise|reason|part|phase|stage|level|round|game|track|verse|schritt|tag|frage|regel|étape|jour|règle|"
    r"paso|día|pregunta|regla|passo|giorno|dia|шаг|день|урок)\s+(?:\d+|[ivx]+|one|two|three|four|five|six)",
    re.IGNORECASE,
)
_RESERVED = frozenset(
    speaker_key(word) for category, values in TAG_VALUES.items() for word in (category, *values, "pause", "speed")
)


def parse(lines: Iterable[str]) -> list[ParsedLine]:
    """Parse lines and their possible speaker names. Only the whole script decides which ones are names.

    A name alone on a line counts if the next line has other text, else at most in capitals as a loose one.
    """
    lines = list(lines)
    start_of, neutral = functools.cache(_start_of), functools.cache(_is_neutral)  # lines recur
    starts, directions = [start_of(line) for line in lines], direction_lines(lines)
    parsed, is_last = [], True  # no words of its own follow the line
    for at in reversed(range(len(lines))):
        line, start = lines[at], starts[at]
        after, other = (lines[at + 1], starts[at + 1]) if at + 1 < len(lines) else ("", None)
        if start and start.form is Form.ALONE and not is_loud(start) and (is_last or not after.strip()):
            start = None
        elif start and is_loud(start) and (not after.strip() or (other and is_loud(other))):
            start = replace(start, form=Form.LOOSE)
        is_neutral = is_last if directions[at] and start else directions[at] or (start is None and neutral(line))
        parsed.append(ParsedLine(line, start, is_neutral, directions[at]))
        if line.strip():
            is_last = start is not None and start.form in (Form.COLON, Form.BRACKET) and not is_said(start.name)
    return parsed[::-1]


def is_said(name: str) -> bool:
    """True if a word before a colon is rather part of the text than a speaker."""
    return _SAID.fullmatch(name) is not None


def is_loud(start: Start) -> bool:
    """True if it is alone on its line and bold or in capitals, as in screenplays."""
    return start.form is Form.ALONE and (start.is_bold or start.name.isupper())


def _is_neutral(line: str) -> bool:
    return not is_spoken(read_pauses(line).text) or _HEADING.match(line.strip()[:_LOOK]) is not None


def _start_of(line: str) -> Start | None:
    line = begun(line).rstrip()
    head, rest = line[:_LOOK], line[_LOOK:]
    if is_pause(head) or _HEADING.match(head):
        return None
    match, form, is_bold = _BRACKET.match(head), Form.BRACKET, False
    if match is None and (match := _ANGLE.match(head)):
        is_markup = match["name"][0].islower() or match["name"] in _MARKUP or f"</{match['name']}>" in line
        match, form = None if is_markup else match, Form.COLON
    elif match is None:
        if listed := _LIST.match(head):
            head = head[listed.end() :]
        if marked := _MARKED.match(head):
            head, is_bold = f"{marked[2]}{marked[3] + ' ' if marked[3] else ''}{head[marked.end() :]}", True
        elif quoted := _QUOTED.match(head):
            head = quoted["name"] + head[quoted.end() :]
        match, form = _COLON.match(head), Form.COLON
        if match is None and (match := _DASH.match(head)):
            form, match = Form.DASH, match if _is_titled(match["name"], 3) else None
        elif match is None and not (listed or rest) and (match := _ALONE.fullmatch(head)):
            name = match["name"]
            may_stand = name[0].isalpha() and name[-1] not in _NOT_LAST and len(name) > 1 and not _ROMAN.fullmatch(name)
            form, match = Form.ALONE, match if may_stand and _is_titled(name, 4) else None
    if match is None or not _is_name(match):
        return _loose_start(line)
    given = match.groupdict()
    settings = tuple((given.get("settings") or "").split("|")[1:])
    name, manner = without_invisible(given["name"]), (given["manner"] or "").strip()
    return Start(name, head[match.end() :] + rest, form, settings, manner, is_bold)


def _loose_start(line: str) -> Start | None:
    if time := _TIME.match(line):
        timed = _start_of(line[time.end() :])
        return timed and replace(timed, form=Form.LOOSE)
    head, rest = line[:_LOOK], line[_LOOK:]
    match = _CAPITALS.match(head)
    if match is None or not match["name"].isupper():
        match = next(filter(None, (pattern.match(head) for pattern in _LOOSE)), None)
    if match is None or not _is_name(match):
        return None
    name, manner = without_invisible(match["name"]), match.groupdict().get("manner") or ""
    return Start(name, head[match.end() :] + rest, Form.LOOSE, (), manner)


def _is_name(match: re.Match) -> bool:
    given, name = match.groupdict(), match["name"]
    if len(name) > _LONGEST_NAME or speaker_key(name) in _RESERVED:
        return False
    if given.get("tight") and name[0].islower():  # std::string, http
        return False
    return not (name[0].islower() and stage_directions(f"[{name}]"))  # [laughs] Oh.


def _is_titled(name: str, most: int) -> bool:
    """True if it has at most `most` words, capitalised as in names."""
    words = name.split()
    return len(words) <= most and all(not word[0].islower() or word in _SMALL for word in words)
