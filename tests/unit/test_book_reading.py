"""Reading books: text, Markdown and EPUB files become chapters of paragraphs, without unspoken parts."""

import pytest
from higgs_tts.engine import HiggsError, read_book, read_book_text, read_pronunciations
from higgs_tts.engine.book.text import is_heading
from higgs_tts.tests.epub_files import COVER, DOCUMENTS, NAV, PACKAGE, epub

HEADING = " [pause 1.5]"


def chapters_of(book):
    return [(one.title, [turn.text for turn in one.turns]) for one in book.chapters]


GUTENBERG = """The Project Gutenberg eBook of A Book

Title: A Book
Author: Ann Author

*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***

[Illustration: a cover]

Contents

 CHAPTER I.     The Beginning
 CHAPTER II.    The Middle
 CHAPTER III.   The End

PART ONE

CHAPTER I.
The Beginning

It was _very_ late[1]
and dark.

* * *

She slept.

CHAPTER II. The Middle

Book I read was good.

CHAPTER III

*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***
Licence."""


def test_plain_text_becomes_chapters(tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(GUTENBERG.replace("\n", "\r\n").encode())
    book = read_book(path)
    assert (book.title, book.author) == ("A Book", "Ann Author")
    assert book.left_out == ("Project Gutenberg's own words", "the table of contents", "1 picture", "1 note mark")
    assert chapters_of(book) == [
        (
            "CHAPTER I. The Beginning",
            [
                f"PART ONE{HEADING}",
                f"CHAPTER I. The Beginning{HEADING}",
                "It was very late and dark. [pause 1.5]",
                "She slept.",
            ],
        ),
        (
            "CHAPTER II. The Middle",
            [f"CHAPTER II. The Middle{HEADING}", "Book I read was good.", f"CHAPTER III{HEADING}"],
        ),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_files_are_read_as_editors_save_them(tmp_path, encoding):
    (tmp_path / "Grüße.txt").write_bytes("Grüße.\nEine Zeile ist ein Absatz.\n".encode(encoding))
    book = read_book(tmp_path / "Grüße.txt")
    assert chapters_of(book) == [("Grüße", ["Grüße.", "Eine Zeile ist ein Absatz."])]
    told = "Grüße.txt is not UTF-8 and was read as Windows-1252: 'Grüße.'. If letters are wrong, save it as UTF-8."
    assert book.warnings == ((told,) if encoding == "cp1252" else ())


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("CHAPTER I", True),
        ("Chapter 12: The Sea", True),
        ("chapter twenty-one", True),
        ("Chapter the Last", True),
        ("PART TWO\nThe Return", True),
        ("_Chapter 3_", True),
        ("Prologue", True),
        ("Kapitel 4", True),
        ("Глава 2", True),
        ("第三章 海", True),
        ("CHAPITRE PREMIER", True),
        ("Chapitre deux : La mer", True),
        ("Première partie", True),
        ("Erstes Kapitel", True),
        ("Zweites Kapitel.\nDas Meer", True),
        ("Kapitel eins", True),
        ("Der Tragödie erster Teil", False),
        ("Capítulo primero", True),
        ("Capítulo segundo", True),
        ("Primera parte", True),
        ("Capitolo primo", True),
        ("Parte seconda: Il mare", True),
        ("Capítulo primeiro", True),
        ("Глава первая", True),
        ("Глава двенадцатая", True),
        ("Часть вторая", True),
        ("The First Chapter", True),
        ("Chapter the Second", True),
        ("Second Part: The Sea", True),
        ("第１話", True),
        ("제1장 바다", True),
        ("あとがき", True),
        ("First part of the road was dry.", False),
        ("Erster Teil des Weges war trocken.", False),
        ("Parte prima delle case era vuota.", False),
        ("La primera parte fue fácil.", False),
        ("Second book I read was good.", False),
        ("The second act. Nobody moved.", False),
        ("Letter after letter came.", False),
        ("Part of the reason was this.", False),
        ("Book I read was good.", False),
        ("Chapter one was long, and " + "nobody read it " * 12, False),
        ("Introduction to algebra is hard.", False),
        ("The chapter 3", False),
    ],
)
def test_headings_are_told_from_sentences(line, is_one):
    assert is_heading(line) == is_one


MARKDOWN = """---
title: "A Book"
author: Ann
---

# A Book

## One

*Hello*, [there](http://example.org "x")! ![a picture](a.png) It costs 5 * 3 \\* 2.
It goes on <|emotion:elation|><b>here</b>.

- first
- second

1. third

***

<!-- a comment -->
### Below

> A quote.[^1]

[^1]: a note

Two
---

```
code
```
"""


def test_markdown_becomes_chapters(tmp_path):
    path = tmp_path / "file.md"
    path.write_text(MARKDOWN, encoding="utf-8")
    book = read_book(path)
    assert (book.title, book.author) == ("A Book", "Ann")
    assert chapters_of(book) == [
        (
            "One",
            [
                f"A Book{HEADING}",
                f"One{HEADING}",
                "Hello, there! It costs 5 * 3 * 2. It goes on <|emotion:elation|>here.",
                "first",
                "second",
                "1. third [pause 1.5]",
                f"Below{HEADING}",
                "A quote.",
            ],
        ),
        ("Two", [f"Two{HEADING}", "code"]),
    ]
    plain = read_book_text(MARKDOWN, "Other")
    assert chapters_of(plain) == chapters_of(book)
    assert [title for title, _ in chapters_of(read_book_text("# A\n\nx\n\n# B\n\ny", "T"))] == ["A", "B"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Write to <ann@example.com>.", ["Write to ann@example.com."]),
        ("<<Bonjour>> dit-il. If a<b and c.", ["<<Bonjour>> dit-il. If a<b and c."]),
        ("Enter <your name>.", ["Enter <your name>."]),
        ("Use `<b>` or <B>bold</B>, <span class='x'>in</span><br/>or not.", ["Use <b> or bold, in or not."]),
        ('Wait <break time="1s"/>here <pause/>for <voice name="a">me</voice>.', ["Wait here for me."]),
        ("```print``` prints.\n\nIt <ran>.", ["print prints.", "It <ran>."]),
        ("````\na <b & <! c\n````\n\nLast.", ["a <b & <! c", "Last."]),
        ("<details><summary>One</summary>Two.</details>", ["One", "Two."]),
        ("<fieldset><legend>One</legend>Two.</fieldset>Three.", ["One", "Two.", "Three."]),
        ("[Ann]: Hello.\n\n[Note]: It is late.", ["[Ann]: Hello.", "[Note]: It is late."]),
        ("See [it][a].\n\n[a]: https://example.com 'It'\n[b]: <x y>", ["See it."]),
        ("---\n\nIt was dark.\n\n---\n\nMore.", ["It was dark. [pause 1.5]", "More."]),
        ("---\nIt was dark.\nMen came.\n\n---\nMore.", ["It was dark. Men came. [pause 1.5]", "More."]),
        ("---\ntags:\n  - a\n# b\n\nlong: |\n  c\n---\nText.", ["Text."]),
    ],
)
def test_markdown_loses_no_words(tmp_path, written, said):
    path = tmp_path / "file.md"
    path.write_text(written, encoding="utf-8")
    [(_, turns)] = chapters_of(read_book(path))
    assert turns == said


SPOKEN = [
    (
        "The First",
        [
            f"First\nof all{HEADING}",
            "One bold word—and more.",
            "Not closed. [pause 1.5]",
            f"Section{HEADING}",
            "Two\nlines.",
            "漢",
            "Still the first.",
        ],
    ),
    ("Second", [f"Second{HEADING}", "Three.", f"Below{HEADING}", "a", "b"]),
]


def test_an_epub_is_split_by_its_table_of_contents(tmp_path):
    book = read_book(epub(tmp_path / "book.epub"))
    assert (book.title, book.author) == ("A Book", "Ann") and chapters_of(book) == SPOKEN
    assert set(book.left_out) == {"the copyright page", "1 note mark", "1 note"}


@pytest.mark.parametrize("encoding", ["gb18030", "shift_jis", "cp1251", "utf-16"])
def test_an_epub_is_read_in_its_declared_encoding(tmp_path, encoding):
    said = {"cp1251": "Глава первая.", "shift_jis": "これは本です。"}.get(encoding, "第一章。")
    document = f'<html><head><meta charset="{encoding}"/></head><body><p id="two">{said}</p></body></html>'
    package = PACKAGE.replace('"1.0"?>', f'"1.0" encoding="{encoding}"?>')
    files = {"OEBPS/book.opf": package, "OEBPS/text/b.xhtml": document}
    book = read_book(epub(tmp_path / "book.epub", **{name: text.encode(encoding) for name, text in files.items()}))
    assert (book.title, book.author) == ("A Book", "Ann") and said in chapters_of(book)[-1][1]


def test_an_epub_2_is_read(tmp_path):
    package = PACKAGE.replace(' properties="nav"', "").replace('<itemref idref="nav"/>', "")
    book = read_book(epub(tmp_path / "book.epub", **{"OEBPS/book.opf": package}))
    assert chapters_of(book) == SPOKEN


def test_a_title_that_is_a_picture_is_that_of_the_next_document(tmp_path):
    """Even if all titles are, so that no document with text is in the contents."""
    package = PACKAGE.replace('<itemref idref="a"/>', '<itemref idref="n"/><itemref idref="a"/>')
    nav = NAV.replace("text/a%20b.xhtml", "text/notes.xhtml")
    picture = '<body><p><img src="one.png" alt=""/></p></body>'
    files = {"OEBPS/book.opf": package, "OEBPS/nav.xhtml": nav, "OEBPS/text/notes.xhtml": picture}
    assert chapters_of(read_book(epub(tmp_path / "book.epub", **files))) == SPOKEN


def test_an_epub_without_contents_has_one_chapter_per_file(tmp_path):
    package = PACKAGE.replace(' properties="nav"', "").replace('<itemref idref="nav"/>', "").replace(' toc="ncx"', "")
    book = read_book(epub(tmp_path / "book.epub", **{"OEBPS/book.opf": package}))
    assert [title for title, _ in chapters_of(book)] == ["First of all", "Second"]


@pytest.mark.parametrize(
    ("head", "encoding", "said"),
    [
        ('<?xml version="1.0" encoding="gb2312"?>', "gb18030", "你好，朱镕基。"),
        ("<META CHARSET=Shift_JIS>", "cp932", "こんにちは①。"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "cp1251", "Привет."),
        ('<meta charset="iso-8859-1">', "utf-8", "Grüße."),  # what it is counts, not what it says
        ('<meta charset="iso-8859-1">', "cp1252", "“Grüße.”"),
    ],
)
def test_an_epub_s_misnamed_encoding_is_read_as_meant(tmp_path, head, encoding, said):
    document = f"{head}<body><p>{said}</p></body>".encode(encoding)
    book = read_book(epub(tmp_path / "book.epub", **{"OEBPS/text/a b.xhtml": document}))
    assert book.chapters[0].turns[0].text == said and not book.warnings


@pytest.mark.parametrize(
    "head", ["", "<meta charset=nonsense>", "<meta charset=rot13>", "<meta charset=undefined>", "<meta charset=utf-8>"]
)
def test_a_guessed_encoding_is_a_warning(tmp_path, head):
    document = f"{head}<body><p>Grüße.</p></body>".encode("cp1252")
    changes = {f"OEBPS/text/{name}": document for name in DOCUMENTS}
    book = read_book(epub(tmp_path / "book.epub", **changes))
    assert book.chapters[0].turns[0].text == "Grüße."
    (warning,) = book.warnings
    assert warning.startswith("book.epub: OEBPS/text/") and "is not UTF-8 and was read as Windows-1252" in warning


LOCKED = """<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:CipherReference URI="OEBPS/text/b.xhtml"/>
</encryption>"""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"META-INF/container.xml": None}, r"container.xml is missing"),
        ({"OEBPS/book.opf": "<package"}, r"cannot be read as an EPUB"),
        ({"OEBPS/book.opf": b'<?xml encoding="unicode_escape"?><p>\xe9\\ud800</p>'}, r"has nothing to read aloud"),
        ({"OEBPS/book.opf": '<?xml version="1.0" encoding="no-such"?><package'}, r"cannot be read as an EPUB"),
        ({"META-INF/encryption.xml": LOCKED}, r"is protected \(DRM\)"),
        ({f"OEBPS/text/{name}": "<p>...</p>" for name in DOCUMENTS}, r"has nothing to read aloud"),
    ],
)
def test_a_faulty_epub_is_refused_with_the_reason(tmp_path, changes, told):
    with pytest.raises(HiggsError, match=rf"book\.epub.*{told}"):
        read_book(epub(tmp_path / "book.epub", **changes))


def test_an_epub_with_encrypted_fonts_is_read(tmp_path):
    locked = LOCKED.replace("text/b.xhtml", "font.otf")
    assert chapters_of(read_book(epub(tmp_path / "book.epub", **{"META-INF/encryption.xml": locked}))) == SPOKEN


def test_files_that_are_no_books_are_refused(tmp_path):
    (tmp_path / "book.epub").write_text("no zip", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" \n* * *\n", encoding="utf-8")
    for name, told in (
        ("book.pdf", r"Choose a file ending in \.txt"),
        ("none.txt", "does not exist"),
        ("book.epub", "cannot be read as an EPUB"),
        ("empty.txt", "nothing to read aloud"),
    ):
        with pytest.raises(HiggsError, match=rf"{name}.*{told}"):
            read_book(tmp_path / name)
    with pytest.raises(HiggsError, match="a script must be a text file"):
        read_book(tmp_path / "book.epub", is_script=True)


def test_a_script_may_have_chapters():
    script = "Ann = a.wav\nBob = b.wav\n\nChapter 1\n\nAnn: One.\nBob: Two.\n\nStill two.\n\n[pause 2]\n"
    book = read_book_text(script + "\nChapter 2\nAnn: Three.", "Script", is_script=True)
    assert book.head == {"Ann": "a.wav", "Bob": "b.wav"}
    assert [(one.title, [(turn.speaker, turn.text) for turn in one.turns]) for one in book.chapters] == [
        (
            "Chapter 1",
            [("", f"Chapter 1{HEADING}"), ("Ann", "One."), ("Bob", "Two."), ("Bob", "Still two. [pause 2]")],
        ),
        ("Chapter 2", [("", f"Chapter 2{HEADING}"), ("Ann", "Three.")]),
    ]


def test_pronunciations_apply_to_titles_and_text():
    book = read_book_text("# Nguyen\n\nNguyen spoke.", "T").said_as(read_pronunciations("Nguyen = Win"))
    assert chapters_of(book) == [("Nguyen", [f"Win{HEADING}", "Win spoke."])]


def test_pronunciations_apply_to_words_with_soft_hyphens(tmp_path):
    for book in (read_book_text("# One\n\nNgu&shy;yen spoke.", "T"), read_book_text("Ngu\u00adyen spoke.", "T")):
        assert chapters_of(book.said_as(read_pronunciations("Nguyen = Win")))[-1][1][-1] == "Win spoke."


WRAPPED = """The mill at the end of the valley had stood empty for
ten years before the new owner came with a cart and a
lamp to see whether the wheel could be made to turn
again."""
INDENTED = """CHAPTER ONE
    The mill slept. It was
late in the year.
    The river rose. Nobody
came home.
CHAPTER TWO
    The road was long."""
THREE = ["The mill slept. It was late in the year.", "The river rose. Nobody came home.", "The road was long."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (INDENTED, THREE),
        (INDENTED.replace("    ", "\t"), None),
        (INDENTED.replace("    ", "  "), None),
        (INDENTED.replace("    ", "\u3000"), None),
        (INDENTED.replace("CHAPTER TWO", "\nCHAPTER TWO\n").replace("ONE\n", "ONE\n\n"), None),
        (f"CHAPTER ONE\n\n{WRAPPED}\n\nIt fell.", [" ".join(WRAPPED.split()), "It fell."]),
        (f"{WRAPPED}\nIt fell.", [" ".join(WRAPPED.split()), "It fell."]),
        ("He sang:\n\n  O moon of mine,\nthat shines\n  On me,\nand thee.\n\nIt set.",
         ["He sang:", "O moon of mine, that shines On me, and thee.", "It set."]),
        ("One line.\nAnother line.", ["One line.", "Another line."]),
    ],
)  # fmt: skip
def test_paragraphs_of_plain_text_are_found(text, said):
    book = read_book_text(text, "T")
    turns = [turn.text for chapter in book.chapters for turn in chapter.turns if "CHAPTER" not in turn.text]
    assert turns == (said or THREE)


@pytest.mark.parametrize("caption", ["[Illustration: A mill\nstands]", "[Illustration:\n\n_A mill_\n\nstands]"])
def test_a_caption_is_left_out_whole(caption):
    for text in (f"It rained.\n{caption}\nNobody came.", f"It rained.\n\n{caption}\n\nNobody came."):
        [(_, turns)] = chapters_of(book := read_book_text(text, "T"))
        assert [turn.removesuffix(" [pause 1.5]") for turn in turns] == ["It rained.", "Nobody came."]
        assert book.left_out == ("1 picture",)


def test_a_text_may_begin_with_a_byte_order_mark():
    marked = "---\ntitle: A Book\n---\n# One\n\nText.\n\n# Two\n\nMore."
    assert read_book_text(f"\ufeff{marked}", "T") == read_book_text(marked, "T")
    assert read_book_text(f"\ufeff{marked}", "T").title == "A Book"


def test_a_heading_of_a_part_and_its_chapter_is_no_table_of_contents():
    book = read_book_text("PART ONE\nCHAPTER I\nThe Storm\n\nIt rained.", "T")
    assert chapters_of(book) == [
        ("PART ONE CHAPTER I The Storm", [f"PART ONE CHAPTER I The Storm{HEADING}", "It rained."])
    ]
    assert not book.left_out


@pytest.mark.parametrize(
    "headings",
    [
        ("CHAPITRE PREMIER", "CHAPITRE II"),
        ("Erstes Kapitel", "Zweites Kapitel"),
        ("Capítulo primero", "Capítulo segundo"),
        ("Capitolo primo", "Capitolo secondo"),
        ("Capítulo primeiro", "Capítulo segundo"),
        ("Глава первая", "Глава вторая"),
        ("First Chapter", "Second Chapter"),
        ("第一回", "第二回"),
        ("제1장", "제2장"),
    ],
)
def test_chapters_are_found_in_every_language(headings):
    text = "".join(f"{heading}\n\nThe mill slept.\n\n" for heading in headings)
    assert [one.title for one in read_book_text(text, "T").chapters] == list(headings)


@pytest.mark.parametrize("epub_2", [False, True])
def test_an_epub_brings_its_details_and_its_cover(tmp_path, epub_2):
    about = "<dc:date>1999-05-01</dc:date><dc:language>en-GB</dc:language><dc:subject>Tales</dc:subject>"
    about += "<dc:description>&lt;p&gt;It is  long.&lt;/p&gt;</dc:description>"
    about += '<meta name="cover" content="pic"/>' if epub_2 else ""
    item = '<item id="pic" href="pic.jpg"' + ("" if epub_2 else ' properties="cover-image"') + "/>"
    package = PACKAGE.replace("</metadata>", f"{about}</metadata>").replace("</manifest>", f"{item}</manifest>")
    files = {"OEBPS/book.opf": package, "OEBPS/pic.jpg": COVER}
    found = read_book(epub(tmp_path / "book.epub", **files)).details
    assert (found.year, found.language, found.genre, found.description) == ("1999", "en-GB", "Tales", "It is long.")
    assert found.cover == COVER and found.narrator == ""
    files["OEBPS/pic.jpg"] = "<svg/>"
    assert read_book(epub(tmp_path / "book.epub", **files)).details.cover == b"", "neither JPEG nor PNG"
    files["OEBPS/pic.jpg"] = None
    assert read_book(epub(tmp_path / "book.epub", **files)).details.cover == b"", "it is missing"
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    files["OEBPS/pic.jpg"] = COVER[:-20]
    assert read_book(epub(tmp_path / "book.epub", **files)).details.cover == b"", "it is cut short"
