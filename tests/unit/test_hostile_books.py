"""Books made to exhaust time or memory: read in one pass or refused in a sentence."""

import zipfile

import pytest
from higgs_tts.engine import HiggsError, read_book, read_book_text
from higgs_tts.engine.book import chapters
from higgs_tts.engine.book.xhtml import links_in, read_document
from higgs_tts.engine.files.plain_text import unescape
from higgs_tts.tests.epub_files import DOCUMENTS, NCX, PACKAGE, epub


def chapters_of(book):
    return [(one.title, [turn.text for turn in one.turns]) for one in book.chapters]


MANY = 100_000  # times; what was read again from each of them took minutes to hours


@pytest.mark.parametrize(
    "sign",
    ["_", "_a ", "*", "*a ", "**a ", "***a ", "~~a ", "`", "`a ", "```a ", "![", "![a](", "[", "[a](", "[a](()", "[a][",
     "[^", "[^1", "<!--", "<!-- a ", "<a ", "\\", "> ", "# ", "- ", "- - "],
)  # fmt: skip
def test_a_long_line_of_one_sign_is_read_quickly(sign, tmp_path):
    for name in ("book.md", "book.txt"):
        (tmp_path / name).write_text(f"# A heading\n\nBefore.\n\n{sign * MANY}\n\nBehind.")
        said = [turn.text for chapter in read_book(tmp_path / name).chapters for turn in chapter.turns]
        assert said[-1].startswith("Behind.") and any(one.startswith("Before.") for one in said)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("**bold** and ***both*** and _low_ and __lower__", "bold and both and low and lower"),
        ("a * b * c and snake_case_name and 2*3*4", "a * b * c and snake_case_name and 234"),
        ("**never closed, and `this` is", "**never closed, and this is"),
        (r"\*not this\* but `that`", "*not this* but that"),
        ("[a link](http://a.b/c_(d)) and ![none](x(y)z)[^2]", "a link and"),
        ("[![badge](a.svg)](http://a.b)Words", "Words"),
        ("<!-- gone -->Here<!-- and never closed", "Here<!-- and never closed"),
    ],
)
def test_signs_around_words_are_removed(written, said):
    assert [turn.text for turn in read_book_text(f"# A\n\n{written}", "T").chapters[0].turns][1:] == [said]


def test_pauses_after_a_paragraph_are_read_quickly():
    for is_script, first in ((False, "One."), (True, "Ann: One.\n\nAnn: Two.")):
        text = f"{first}\n\n" + "[pause 1]\n\n" * 5_000
        (chapter,) = read_book_text(text, "T", is_script).chapters
        assert chapter.turns[-1].text.count("[pause 1]") == 5_000


@pytest.mark.parametrize(
    ("text", "told"),
    [("a\n" * 200_002, "200,003 lines"), ("a" * (8 << 20) + "bc", "8,388,610 characters"), ],
)  # fmt: skip
def test_a_text_longer_than_any_book_is_refused(text, told, tmp_path):
    (tmp_path / "a.md").write_text(text)
    for read in (lambda: read_book_text(text, "T"), lambda: read_book(tmp_path / "a.md")):
        with pytest.raises(HiggsError, match=f"{told}.*Split it"):
            read()


def test_pipes_and_names_with_a_zero_byte_are_refused(tmp_path, make_pipe):
    for suffix in (".txt", ".md", ".epub"):
        make_pipe(tmp_path / f"a{suffix}")
        for name in (f"a{suffix}", f"a\0b{suffix}"):
            with pytest.raises(HiggsError, match="does not exist"):
                read_book(tmp_path / name)


@pytest.mark.parametrize(
    "sign",
    ["<!", "<!--", "<!-- a", "<![CDATA[", "<?", "<", "</", "</a", "<a", "<a b", "<a b='", '<a =">"', "<a b=' c=\"", "&",
     "&#", "<svg><a></b>", "<script>", "<b>", "<title><a></p>", "< "],
)  # fmt: skip
def test_unclosed_marks_are_read_quickly(sign):
    """Python's own parser took hours for a megabyte of these."""
    text = f"<p>Before.</p><p>{sign * MANY}"
    assert read_document(text).paragraphs[0].text == "Before."
    assert links_in(f"<nav><a href='x'>One</a>{sign * MANY}")[0][1:] == ("x", "One")


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        ("<p>1 < 2 &amp; 3 &gt; 2</p>", ["1 < 2 & 3 > 2"]),
        ("<P Class='a>b' ID=c>One</P><p/>Two<br>three", ["One", "Two\nthree"]),
        ("<!-- <p>no</p> --><p>One<!-- > -->.</p><!-- never closed <p>Two</p>", ["One.", "Two"]),
        ("<p>One <![CDATA[& <b>two</b>]]></p>", ["One & <b>two</b>"]),
        ("<script>if (a<b) {}</script><style>p {}</style><p>One</p>", ["One"]),
        ('<p title="it\'s > that">One</p><p title=\'say "&gt;"\'>Two</p>', ["One", "Two"]),
        ("<?xml version='1.0'?><!DOCTYPE html><p>One</ p>Two", ["One", "Two"]),
        ("<p title='never closed>One</p><p>Two</p>", ["One", "Two"]),
        ("<p>One</p><svg><text>no</text><b></svg><p>Two</p>", ["One", "Two"]),
        ("<p>One</p><p", ["One", "<p"]),
    ],
)
def test_markup_is_read_as_browsers_do(markup, said):
    assert [one.text for one in read_document(markup).paragraphs] == said


def test_invalid_character_references_become_replacement_characters():
    assert unescape(f"a&#{'9' * 5000};b &#65; &#x41; &amp; &#0065;") == "a\ufffdb A A & A"


def nested(depth):
    inner = "<navPoint><navLabel><text>Below</text></navLabel><content src='text/a%20b.xhtml#s2'/>"
    return NCX.replace("</navPoint></navMap>", f"{inner * depth}{'</navPoint>' * depth}</navPoint></navMap>")


OLDER = PACKAGE.replace(' properties="nav"', "").replace('<itemref idref="nav"/>', "")


def test_a_deeply_nested_table_of_contents_is_read(tmp_path):
    book = read_book(epub(tmp_path / "a.epub", **{"OEBPS/book.opf": OLDER, "OEBPS/toc.ncx": nested(50_000)}))
    assert [title for title, _ in chapters_of(book)] == ["The First", "Second"]


def test_a_chapter_repeated_in_the_spine_is_read_once(tmp_path):
    package = PACKAGE.replace('<itemref idref="b"/>', '<itemref idref="b"/>' * 50_000)
    assert chapters_of(read_book(epub(tmp_path / "a.epub", **{"OEBPS/book.opf": package}))) == chapters_of(
        read_book(epub(tmp_path / "b.epub"))
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"OEBPS/text/b.xhtml": "<p>" + "a " * (12 << 20)}, "has more than 24 MB of text"),
        ({"OEBPS/text/b.xhtml": "<b>" * 1_000_001}, "has more than 1,000,000 tags"),
        ({"OEBPS/text/b.xhtml": "<p>a" * 200_001}, "has more than 200,000 paragraphs"),
        ({"OEBPS/book.opf": f"<!DOCTYPE a [<!ENTITY a 'aaaa'>]>{PACKAGE}"}, "defines entities"),
        ({"OEBPS/book.opf": f"<package>&{'a' * 100_000};"}, "cannot be read as an EPUB"),
    ],
)
def test_an_epub_larger_than_any_book_is_refused(tmp_path, changes, told):
    with pytest.raises(HiggsError, match=told) as error:
        read_book(epub(tmp_path / "a.epub", **changes))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_than_an_epub_s_are_refused(tmp_path, kind):
    with zipfile.ZipFile(epub(tmp_path / "a.epub")) as given, zipfile.ZipFile(tmp_path / "b.epub", "w", kind) as made:
        for name in given.namelist():
            made.writestr(name, given.read(name))
    with pytest.raises(HiggsError, match="uses a compression that EPUB does not allow"):
        read_book(tmp_path / "b.epub")


@pytest.mark.parametrize("encoding", ["punycode", "unicode_escape", "raw_unicode_escape", "idna", "hex", "undefined"])
def test_encodings_that_are_not_for_text_are_ignored(tmp_path, encoding):
    text = f"<meta charset='{encoding}'><h1 id='two'>".encode() + b"\xe9\\ud800 " + b"a-" * 100_000
    changes = {f"OEBPS/text/{name}": text for name in DOCUMENTS}
    title = chapters_of(read_book(epub(tmp_path / "a.epub", **changes)))[-1][0]
    assert title.encode() and "ud800" in chapters_of(read_book(tmp_path / "a.epub"))[-1][1][0]


@pytest.mark.parametrize("text", ["x" * 2_000_000, "It went on and on. " * 100_000])
def test_a_narrator_s_passage_is_cut_from_the_beginning_alone(text, monkeypatch):
    sizes, split = [], chapters.split_text
    monkeypatch.setattr(chapters, "split_text", lambda text, most: sizes.append(len(text)) or split(text, most))
    book = read_book_text(text, "Book")
    assert 10 < len(chapters.passage_of(book, "")) < 400
    assert sizes and max(sizes) <= 200_001
