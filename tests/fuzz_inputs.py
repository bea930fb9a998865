"""Strategies of hypothesis that make input for the parsers of `fuzzed.py`: mostly whole, damaged in a few places."""

from __future__ import annotations

import json
import struct

from higgs_tts.engine.core.config import FRAME_RATE, SAMPLE_RATE
from higgs_tts.engine.tools.tiny_config import tiny_tokenizer, v2_config, v3_config
from higgs_tts.engine.voice.voice import FORMAT, FORMAT_VERSION
from higgs_tts.tests.epub_files import CONTAINER, NAV, NCX, PACKAGE
from hypothesis import strategies as st

NUMBERS = st.sampled_from((0, 1, -1, 2**31, 2**63, 2**64, 10**400, 1e308, 0.5, float("nan"), float("inf")))
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates too, as JSON may hold them
PLAIN = st.none() | st.booleans() | NUMBERS | st.integers() | st.floats() | TEXTS
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner))
COUNTS = st.integers(0, 40) | st.sampled_from((2**31, 2**32 - 1, 2**63, 2**64 - 1))


@st.composite
def changed(draw, whole):
    """Return JSON like `whole`, often with up to three values replaced, removed or added somewhere."""
    whole = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = draw(st.sampled_from(keys)) if keys else None
            if key is None or not isinstance(at[key], (dict, list)) or draw(st.booleans()):
                break
            at = at[key]
        if key is None:
            break
        if isinstance(at, dict) and draw(st.integers(0, 4)) == 0:
            del at[key]
        else:
            at[key] = draw(JSON)
    return whole


def text_of(*tokens: str) -> st.SearchStrategy[str]:
    """Return texts of a grammar's tokens, with others among them."""
    piece = st.sampled_from(tokens) | st.sampled_from(("\n", " ", "word. ", "\u2028", "\x00", "é", "\r\n"))
    return st.lists(piece | TEXTS, max_size=40).map("".join)


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


_ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HEADER = {"a": _ENTRY, "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [16, 24]}, "__metadata__": {"x": "y"}}


def safetensors(header: bytes, size: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(size)


_STRING = st.text(max_size=12).map(lambda text: struct.pack("<Q", len(text.encode())) + text.encode())
_BROKEN = st.tuples(COUNTS, st.binary(max_size=8)).map(lambda pair: struct.pack("<Q", pair[0]) + pair[1])
_NAMES = st.sampled_from(
    (
        "general.alignment",
        "audiocpp.tensor_names",
        "audiocpp.tensor_ranks",
        "audiocpp.tensor_shapes",
        "audiocpp.embedded_files.names",
        "audiocpp.embedded_files.data",
    )
)
_NAME = _NAMES.map(lambda text: struct.pack("<Q", len(text)) + text.encode()) | _STRING | _BROKEN
_VALUE = st.one_of(
    st.tuples(st.just(struct.pack("<I", 8)), _STRING),
    st.tuples(st.integers(0, 14).map(lambda kind: struct.pack("<I", kind)), st.binary(max_size=9)),
    st.tuples(st.builds(lambda item, n: struct.pack("<IIQ", 9, item, n), st.integers(0, 13), COUNTS), _STRING, _STRING),
)
_SETTING = st.tuples(_NAME, _VALUE.map(b"".join)).map(b"".join)
_PLACED = st.builds(
    lambda name, shape, kind, offset: name + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset),
    _NAME, st.lists(COUNTS, max_size=5), st.integers(0, 40), COUNTS,
)  # fmt: skip
GGUF = st.builds(
    lambda version, settings, tensors, more, tail: b"GGUF"
    + struct.pack("<IQQ", version, len(tensors) + more, len(settings))
    + b"".join([*settings, *tensors])
    + tail,
    st.sampled_from((2, 3, 3, 3, 4)), st.lists(_SETTING, max_size=4), st.lists(_PLACED, max_size=3),
    st.sampled_from((0, 0, 0, 1, 2**63)), st.binary(max_size=64),
)  # fmt: skip


_VOCAB = tiny_tokenizer("v3")
CONFIGS = {"v3": v3_config(_VOCAB, 300), "v2": v2_config(tiny_tokenizer("v2"), 300)}


_TAGS = text_of(
    "<p>",
    "</p>",
    "<h1>",
    "</h1>",
    "<h2 id='a'>",
    "<br/>",
    "<a href='#a'>",
    "<section epub:type='chapter'>",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "&amp;",
    "&#0;",
    "&#x110000;",
    "&#",
    "<!DOCTYPE html [<!ENTITY a 'b'>]>",
    "<nav epub:type='toc'>",
    "<ol>",
    "<li>",
    "<table>",
    "<ruby>",
    "<rt>",
    "<script>",
    "<title>",
    "<?xml version='1.0' encoding='x'?>",
)


@st.composite
def epubs(draw) -> dict[str, str]:
    files = {
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE,
        "OEBPS/nav.xhtml": NAV,
        "OEBPS/toc.ncx": NCX,
    }
    files |= {"OEBPS/text/a b.xhtml": draw(_TAGS), "OEBPS/text/b.xhtml": draw(_TAGS)}
    name = draw(st.sampled_from(sorted(files)))
    whole = files[name]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(whole)))
        files[name] = whole[:at] + draw(_TAGS) + whole[at + draw(st.integers(0, 40)) :]
    elif draw(st.booleans()):
        del files[name]
    return files


FORM = st.lists(
    st.sampled_from((b"--b", b"\r\n", b"\r\n\r\n", b'; name="', b'"', b"Content-Disposition: form-data", b"--"))
    | st.binary(max_size=6)
)
TYPE = (
    st.sampled_from(("multipart/form-data; boundary=b", 'multipart/form-data; boundary="b"', "text/plain")) | st.text()
)
SRT = text_of(
    "00:00:01,000 --> 00:00:02,000\n",
    "1\n",
    "\n\n",
    " --> ",
    "<v Anna>",
    "WEBVTT\n\n",
    "{\\an8}",
    "<i>",
    "99:59:59,999",
    "- ",
)
SCRIPT = text_of(
    "Anna: ", "[Anna|seed:4|speed:fast] ", "[pause 1]", "|volume:", "Anna = a.wav\n", "# ", "**Tom:** ", "<Tom> ", "<|"
)
SHEET = text_of(",", '"', "id", "text", "seed", ";", "\t", "[{", '"text": ', "}]", "\\u", "id,text,seed\na,")
MARKDOWN = text_of(
    "# ", "## ", "---\n", "title: ", "```", "> ", "- ", "[a](b)", "![", "[^1]", "<b>", "<!--", "-->", "***", "&#", "|"
)
_SAID = {
    "format": FORMAT,
    "format_version": str(FORMAT_VERSION),
    "sample_rate": str(SAMPLE_RATE),
    "frame_rate": str(FRAME_RATE),
    "transcript": "A text.",
    "name": "Anna",
    "codec": "256+768",
}
VOICE = st.tuples(
    changed(_SAID),
    changed({"dtype": "I64", "shape": [2, 8], "data_offsets": [0, 128]}),
    st.just(bytes(128)) | st.binary(min_size=128, max_size=128) | st.binary(max_size=160),
)
