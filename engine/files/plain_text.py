"""Text files in any encoding."""

from __future__ import annotations

import codecs
import html
import re
from pathlib import Path

from ..core.config import MOST_TEXT_BYTES
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
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{12,}|[xX][0-9a-fA-F]{12,});?")  # html.unescape raises ValueError for some


def unescape(text: str) -> str:
    """Replace character references, such as &amp; and &#65;, by characters."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def decode_text(data: bytes, declared: str = "") -> str:
    """Decode UTF-8, UTF-16 with a byte order mark, the declared encoding, or else Windows-1252."""
    return _decoded(data, declared)[0]


def doubts(data: bytes, name: str, declared: str = "") -> tuple[str, ...]:
    """Return a warning if `decode_text` had to guess."""
    return _doubts(name) if _decoded(data, declared)[1] else ()


def read_plain_text(path: Path, most: int = MOST_TEXT_BYTES) -> tuple[str, tuple[str, ...]]:
    """Return (text, warnings) of a file of at most `most` bytes, with line feeds as line ends. Raises OSError."""
    text, is_guess = _decoded(read_whole(path, most), "")
    return text.replace("\r\n", "\n"), _doubts(path.name) if is_guess else ()


def _doubts(name: str) -> tuple[str, ...]:
    return (f"{name} is not UTF-8 and was read as Windows-1252. If letters are wrong, save it as UTF-8.",)


def _decoded(data: bytes, declared: str) -> tuple[str, bool]:
    """Return (text, True if the encoding is a guess)."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace"), False
    try:
        return data.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        pass
    try:
        encoding = codecs.lookup(declared).name
        if (
            not encoding.startswith("utf") and encoding.replace("_", "-") not in _NO_TEXT
        ):  # UTF-8 failed and UTF-16 has a mark
            return data.decode(_WIDER.get(encoding, encoding), errors="replace"), False
    except (LookupError, UnicodeError):  # unknown, or not a text encoding
        pass
    return data.decode("cp1252", errors="replace"), True
