"""Text files in any encoding."""

from __future__ import annotations

import codecs
import errno
import functools
import html
import logging
import re
from pathlib import Path

from ..core.config import MOST_TEXT_BYTES
from ..core.errors import shown
from .encodings import guessed, wide
from .whole_file import read_whole

# Declared encoding by Python's name -> superset that browsers use instead.
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
# Python encodings unsuitable for text files: some produce lone surrogates, one takes hours.
_NO_TEXT = ("charmap", "idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
# Beginnings of files that are often renamed to .txt.
_OTHERS = (
    (b"PK\x03\x04", "a document or a ZIP archive"),
    (b"\xd0\xcf\x11\xe0", "a Word document"),
    (b"{\\rtf", "RTF"),
    (b"%PDF-", "a PDF"),
)
_CONTROLS = "".join(map(chr, range(32))).translate(dict.fromkeys(b"\t\n\v\f\r\x1a\x1b"))
_SHOWN = 60  # characters in warnings
_BEYOND = re.compile("[\u0080-\ud7ff\ue000-\U0010ffff]+")
_WRONG = re.compile("[\udc80-\udcff]+")
_LOST = re.compile("\ufffd")
_TWICE = re.compile("â€[™œ“”˜¦\x9d]|Ã[©¨¤¶¼Ÿ±³¡§ª´]")  # UTF-8 that was read as Windows-1252
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{12,}|[xX][0-9a-fA-F]{12,});?")  # html.unescape raises ValueError for some


def encodable(text: str) -> str:
    """Drop lone surrogates, which no file can hold: halves of an emoji that was cut, or bytes that are not UTF-8."""
    return text.encode(errors="ignore").decode()


def unescape(text: str) -> str:
    """Replace character references, such as &amp; and &#65;, by characters."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def decode_text(data: bytes, name: str, declared: str = "") -> tuple[str, tuple[str, ...]]:
    """Return (text, warnings) of UTF-8, UTF-16, UTF-32, the declared encoding, or one that the bytes make likely.

    name: of the file, for warnings: a guessed encoding, and letters that could not be read.
    """
    text, codec = wide(data)
    if not codec:
        text, codec = _narrow(data, declared)
    notes = []
    if codec and not codec.startswith("utf"):
        part = shown(_part(text, _BEYOND))
        notes.append(f"{name} is not UTF-8 and was read as {codec}: {part}. If letters are wrong, save it as UTF-8.")
    if count := text.count("\ufffd"):
        letters = "1 letter" if count == 1 else f"{count:,} letters"
        notes.append(f"{name} has {letters} that cannot be read: {shown(_part(text, _LOST))}. Save it again as UTF-8.")
    if _TWICE.search(text):
        part = shown(_part(text, _TWICE))
        notes.append(f"{name} was saved as UTF-8 twice: {part}. Save it again from the original.")
    return text, tuple(notes)


def read_plain_text(path: Path, most: int = MOST_TEXT_BYTES) -> tuple[str, tuple[str, ...]]:
    """Return (text, warnings) of a file of at most `most` bytes, with line feeds as line ends.

    The warnings are logged, too. Raises OSError, also if it is not text.
    """
    data = read_whole(path, most)
    if kind := next((kind for mark, kind in _OTHERS if data.startswith(mark)), ""):
        raise OSError(errno.EINVAL, f"it is {kind}, not plain text")
    text, notes = decode_text(data, path.name)
    if _is_binary(text):
        raise OSError(errno.EINVAL, "it is not text")
    for warning in notes:
        tell(warning)
    return text.replace("\r\n", "\n"), notes


@functools.lru_cache(256)
def tell(warning: str) -> None:
    """Log a warning, before anything is spoken. Only once, since files are read again and again."""
    logging.getLogger("higgs_tts").warning("%s", warning)


def _is_binary(text: str) -> bool:
    return sum(text.count(one) for one in _CONTROLS) > len(text) // 100


def _part(text: str, pattern: re.Pattern) -> str:
    match = pattern.search(text)
    start = match.start() if match else 0
    begin = max(text.rfind("\n", 0, start) + 1, start - _SHOWN // 2)
    return " ".join(text[begin : begin + _SHOWN].partition("\n")[0].split())


def _narrow(data: bytes, declared: str) -> tuple[str, str]:
    """Return (text, name of the encoding if it is a guess) of data without wide characters."""
    try:
        text = data.decode("utf-8-sig")
        return guessed(data) if _is_binary(text) else (text, "")
    except UnicodeDecodeError:
        pass
    try:
        encoding = codecs.lookup(declared).name
        if (
            not encoding.startswith("utf") and encoding.replace("_", "-") not in _NO_TEXT
        ):  # UTF-8 failed and UTF-16 has a mark
            return data.decode(_WIDER.get(encoding, encoding), errors="replace"), ""
    except (LookupError, UnicodeError):  # unknown, or not a text encoding
        pass
    text = data.decode("utf-8-sig", errors="surrogateescape")
    wrong = sum(map(len, _WRONG.findall(text)))
    if sum(map(len, _BEYOND.findall(text))) > 2 * wrong:  # some wrong bytes, or cut in its last letter
        return _WRONG.sub("\ufffd", text), ""
    return guessed(data)
