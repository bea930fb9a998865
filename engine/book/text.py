"""Plain text as chapters: paragraphs with any line breaks, and headings such as CHAPTER II."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ..prompt.wrapped import joined_words, unwrapped, without_invisible
from .book import Book, Paragraph, is_scene_break, make_chapters
from .marks import summary_of, without_low_lines

_KINDS = (
    "chapter|part|book|act|letter|canto|volume|section|kapitel|teil|buch|akt|chapitre|partie|livre|tome|acte|"
    "capítulo|parte|libro|acto|livro|ato|capitolo|atto|hoofdstuk|deel|rozdział|część|глава|часть|книга|том|"
    "розділ|частина"
)
_ALONE = (
    "prologue|epilogue|preface|foreword|afterword|introduction|conclusion|interlude|vorwort|nachwort|prolog|"
    "epilog|einleitung|préface|avant-propos|épilogue|prólogo|epílogo|prefacio|prefácio|introducción|introdução|"
    "prologo|epilogo|prefazione|introduzione|пролог|эпилог|предисловие|введение|послесловие|序章|终章|終章|序|前言|后记|後記|"
    "あとがき|プロローグ|エピローグ|프롤로그|에필로그"
)
# Numbers in words by language: cardinals, and how ordinals begin. "the" and "der" stand before one: Chapter the Last.
_CARDINALS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty the last eins zwei drei vier fünf sechs sieben acht neun "
    "zehn elf zwölf un deux trois quatre cinq sept huit neuf dix onze douze treize uno dos tres cuatro cinco "
    "seis siete ocho nueve diez once doce due tre quattro cinque sei sette otto nove dieci um dois três quatro "
    "sete oito dez один два три четыре пять"
)
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth last erst zweit dritt "
    "viert fünft sechst sieb acht neunt zehnt elft zwölft letzt premi prem deuxi seconde troisi quatri cinqui "
    "sixi septi huiti neuvi dixi onzi douzi derni primer segund tercer cuart quint sext séptim octav noven décim "
    "últim prim terz quart sest settim ottav non decim ultim primeir terceir sétim oitav перв втор трет четв пят "
    "шест седьм восьм девят десят последн"
)
_ORDINAL = rf"(?:(?:the|der|die|das|la|le|el|il|o|a)\s+)?(?:{'|'.join(_ORDINALS.split())})[^\W\d_]{{0,6}}"
_NUMBER = rf"(?:\d+|[ivxlcdm]+|(?:{'|'.join(_CARDINALS.split())})(?:[- ]\w+)?|{_ORDINAL}|\w{{1,15}}цат\w{{1,4}})"
_HEADING = re.compile(
    rf"(?:(?:{_KINDS})\s+{_NUMBER}(?:\s*$|\s*[.:\-–—]\s*(?P<rest>.*)|\s+(?P<title>\S.*))"
    rf"|(?:{_ORDINAL}|\d+[.º°ª]?)\s+(?:{_KINDS})(?:\s*\.?\s*$|\s*[:–—]\s*.*|\.?\n.*)|(?:{_ALONE})\.?\s*$"
    r"|第\s?[\d０-９零〇一二三四五六七八九十百千]+\s?[章节節回部卷話话幕篇](?:\s.*)?$|제\s?\d+\s?[장부화권편막](?:\s.*)?$)",
    re.IGNORECASE | re.DOTALL,
)
_MOST_LINES, _MOST_CHARACTERS = 3, 150
_CONTENTS = re.compile(r"(?:table of )?contents[.:]?|inhalt(?:sverzeichnis)?|table des matières|índice", re.IGNORECASE)
_ENDS = frozenset(".!?:…\"'”’»)*")
_BLANK = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_PICTURE = re.compile(r"\[illustration[^\[\]]*\]", re.IGNORECASE)
# Start and end marks of Project Gutenberg's texts.
_START = re.compile(r"\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^\n*]*\*{3}[^\S\n]*\n")
_END = re.compile(r"\n[^\S\n]*\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK")
_FIELD = {name: re.compile(rf"^{name}:[^\S\n]*(\S[^\n]*)", re.MULTILINE) for name in ("Title", "Author")}


def read_text(text: str, title: str) -> Book:
    """Read a book in plain text. title: used if the text names none."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    author, left_out = "", []
    if start := _START.search(text):
        fields = {
            name: match[1].strip() for name, field in _FIELD.items() if (match := field.search(text, 0, start.end()))
        }
        title, author = fields.get("Title", title), fields.get("Author", "")
        end = _END.search(text, start.end())
        text = text[start.end() : end.start() if end else len(text)]
        left_out.append("Project Gutenberg's own words")
    marks = Counter("picture" for _ in _PICTURE.finditer(text))
    text = _PICTURE.sub(lambda match: " ".join(match[0].split()), text)  # a caption may have paragraphs
    parts: list[tuple[str, list[Paragraph]]] = [("", [])]
    for block in _blocks(text):
        if _is_contents(block):
            left_out.append("the table of contents")
        elif is_heading(block):
            parts.append((block, [Paragraph(_joined(block), level=1)]))
        else:
            parts[-1][1].append(Paragraph("" if is_scene_break(block) else _joined(block)))
    chapters = make_chapters(title, parts, marks)
    return Book(title, chapters, author, (*dict.fromkeys(left_out), *summary_of(marks)))


def is_heading(block: str) -> bool:
    block = block.strip()
    if len(block) > 2 * _MOST_CHARACTERS or len(block := without_low_lines(block)) > _MOST_CHARACTERS:
        return False
    match = _HEADING.match(block) if block.count("\n") < _MOST_LINES else None
    if match is None:
        return False
    title = match["title"]
    # "Part one of the story", "Book I read": a title on the same line does not continue in lower case.
    return title is None or "\n" in block[: match.start("title")] or not title[0].islower()


def _blocks(text: str) -> Iterator[str]:
    """Yield paragraphs, separated by blank lines or begun by indents, or each line if there are neither."""
    text = joined_words(without_invisible(text)).strip("\n")
    parted = _BLANK.split(text)
    if _has_indents(text.split("\n")):
        parted = [one for block in parted for one in _at_indents(block)]
    elif len(parted) == 1:
        parted = unwrapped(text).split("\n")
    for block in parted:
        if block.strip():
            yield block.strip()


def _has_indents(lines: list[str]) -> bool:
    """True if indented lines begin paragraphs: others go on in them, and what precedes them ends."""
    begin = go_on = against = 0
    before, is_behind_gap = "", True
    for line in lines:
        stripped = line.strip()
        if stripped and not is_heading(stripped):
            is_end = not before or is_behind_gap or before[-1] in _ENDS or is_heading(before)
            begin += line[0].isspace()
            go_on += not line[0].isspace() and not is_behind_gap
            against += not is_end if line[0].isspace() else is_behind_gap and not is_heading(before or "")
        before, is_behind_gap = stripped or before, not stripped
    return go_on > 0 and begin > 1 and 5 * against <= begin


def _at_indents(block: str) -> Iterator[str]:
    lines: list[str] = []
    for line in block.split("\n"):
        if lines and (line[:1].isspace() or is_heading(line)):
            yield "\n".join(lines)
            lines = []
        lines.append(line)
    yield "\n".join(lines)


def _is_contents(block: str) -> bool:
    lines = [line.strip() for line in block.split("\n")]
    if is_heading(block) and len({line.partition(" ")[0].lower() for line in lines}) == len(lines):
        return False  # the heading of a part and its chapter
    return _CONTENTS.fullmatch(block) is not None or (len(lines) > 2 and sum(map(is_heading, lines)) > len(lines) / 2)


def _joined(block: str) -> str:
    """Join a paragraph's lines, without marks for italics."""
    text = " ".join(line.strip() for line in _PICTURE.sub(" ", block).split("\n"))
    return " ".join(without_low_lines(text).split())
