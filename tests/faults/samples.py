"""Sample texts for every reader, and the tokens of their grammars."""

from __future__ import annotations

SAID = "Hello, <|emotion:elation|>the world [pause 1] of Nguyen."
PAUSES = (
    "[pause]", "[pause 60]", "[pause", "[pause:", "[pause 1.5 s]", "pause", "<|prosody:pause|>", "<|", "|>", "<",
    "[laughs]", "*sighs*", "[", "]", "(", ")", "<emotion:", "&#", "\\",
)  # fmt: skip
NAMES = (
    "Anna: ", "Tom: ", "[Anna]", "[Anna|seed:", "[Anna|seed:4|speed:fast|volume:-6dB] ", "|seed:", "|", "# ",
    "A = ", "Anna = anna.wav", "1. Anna: ", "- ", "**Anna:** ", "<Anna> ", "ANNA\n", "Anna (whispering): ", ":",
    "：", "_", "\\#", "Speaker 1: ", "[1] ", "[S1]", "--",
)  # fmt: skip
SCRIPT = """Anna = anna.wav
Tom = tom.wav

# a comment
Anna: Hello, <|emotion:elation|>the world [pause 1] of Nguyen.
[Tom|seed:4|volume:-6dB] No.

Tom: Yes.
"""
CUES = (
    "00:00:01,000 --> 00:00:02,000\n", " --> ", "-->", "->", "<v Anna>", "<v ", "<i>", "<c.a.b>", "{\\an8}", "\\N",
    "- ", "♪", "[door slams]", "(SIGHS)", "ANNA: ", "Anna: ", "WEBVTT\n\n", "99:59:59,999", "&amp;", "&#",
    "\n\n1\n", ">> ", "<00:00:01.000>", ":",
)  # fmt: skip
SRT = """1
00:00:01,000 --> 00:00:02,500
Anna: Hello there.

2
00:00:03,000 --> 00:00:04,000
- Tom: <i>No.</i>

"""
VTT = """WEBVTT

NOTE x

1
00:01.000 --> 00:02.500 align:start
<v Anna>Hello &amp; goodbye.

00:03.000 --> 00:04.000
♪
"""
SHEETS = (
    'id,speaker,text,seed\na,Anna,Hello there.,4\nb,Tom,"No, no.",\n',
    '[{"id": "a", "speaker": "Anna", "text": "Hello.", "seed": 4}, {"text": "No."}]',
    '{"a": "Hello.", "b": {"text": "No.", "seed": 3}}',
    "Hello there.\nNo.\n",
)
SHEET = (
    ",", '"', '""', "\t", ";", "id", "text", "seed", '{"', "[", "]", "}", '"a": ', "\r", "[{", '"text"', "id,",
    "\\u",
)  # fmt: skip
LIST = """Nguyen = Win
SQL = sequel
[Anna]
hello = hallo # a comment
"""
WORDS = (
    "a = b", " = ", "=", "[Anna]", "[", "#", "Nguyen = Win\n", "x = y\n", "hello = ", "é = e\n", "\\", "(", "*",
)  # fmt: skip
MARKDOWN = """---
title: A Book
author: Ann
---
# A Book

## One

*Hello*, [there](http://a.b) ![x](y) `c` <b>d</b>.[^1]

- first
1. third

***

<!-- no -->
> A quote.

[^1]: a note

Two
---

```
code
```
"""
MARKS = (
    "_", "*", "**", "***", "`", "```", "~~", "![", "![a](", "[", "[a](", "](", "][", "[^1]", "[^", "<!--", "-->",
    "<a ", "<b>", "\\", "> ", "# ", "## ", "- ", "1. ", "---\n", "===\n", "| ", "&#", "<http://", "_a ", "*a ",
    "~~a ", "`a ", "[pause 1]\n\n", "* * *\n\n",
)  # fmt: skip
TEXT = """*** START OF THE PROJECT GUTENBERG EBOOK A ***

Contents

CHAPTER I
CHAPTER II

CHAPTER I.
The Beginning

It was _very_ late[1].

* * *

She slept.

CHAPTER II

The end.

*** END OF THE PROJECT GUTENBERG EBOOK A
"""
LINES = (
    "*** START OF THE PROJECT GUTENBERG EBOOK ", "CHAPTER I\n\n", "Chapter ", "_", "_a ", "[illustration", "[1]",
    "\n\n", "Contents\n", "Title: ", "* * *\n\n", "-", "\x0c", "第三章 ", "[pause 1]\n\n", "***", "Part of the ",
)  # fmt: skip
TAGS = (
    "<!", "<!--", "-->", "<![CDATA[", "]]>", "<?", "<", ">", "</", "<a", "<a b='", '="', "'", "&", "&#",
    "&#99999999999;", "<p>", "</p>", "<br/>", "<hr>", "<svg>", "<script>", "</b>", "<navPoint>",
    '<itemref idref="a"/>', "<h1 id='x'>", "<!ENTITY a 'b'>", "<!DOCTYPE a [", "href", "encoding='hex'",
    "charset=punycode", "../", "%00", "#", "<ol>", "<aside epub:type='footnote'>",
)  # fmt: skip
