"""Parts of books that are not read aloud: note marks, notes and hidden text. Scene breaks become pauses."""

import pytest
from higgs_tts.engine import read_book, read_book_text
from higgs_tts.tests.epub_files import DOCUMENTS, epub

NAMES = list(DOCUMENTS)


def said(book):
    return [turn.text.removesuffix(" [pause 1.5]") for chapter in book.chapters for turn in chapter.turns]


def book_of(tmp_path, *bodies, **files):
    """Return an EPUB's book with these documents."""
    texts = dict(zip([NAMES[1], NAMES[2]], [*bodies, ""], strict=False))
    return read_book(
        epub(tmp_path / "book.epub", **{f"OEBPS/text/{name}": text for name, text in texts.items()}, **files)
    )


LONG = (
    "<p>The old mill<sup>1</sup> stood still.<a href='#n2'><sup>2</sup></a> It was 1923"
    "<a id='r3' href='n.xhtml#n3'>3</a> then. Nobody<a href='#n4'><sup>[4]</sup></a> came.<sup>*5</sup> "
    "The 20<sup>th</sup> century. E = mc<sup>2</sup>.</p>"
)


@pytest.mark.parametrize(
    ("written", "spoken", "marks"),
    [
        (LONG, "The old mill stood still. It was 1923 then. Nobody came. The 20th century. E = mc\u00b2.", 5),
        ("<p>One<a href='#a' epub:type='noteref'>1</a> two.</p>", "One two.", 1),
        ("<p>One<a class='footnote-ref' href='#a'><sup>1</sup></a> two.</p>", "One two.", 1),
        ("<p>One <a href='#fn12'>12</a> two.</p>", "One two.", 1),
        ("<p>One <a href='#x'>[12]</a> two <a href='#y'>*</a>.</p>", "One two .", 2),
        ("<p>One.<sup>1,2</sup> Two.<sup><a href='#y'>3</a></sup></p>", "One. Two.", 2),
        ("<p>In 1987<sup>3</sup> it rose.</p>", "In 1987 it rose.", 1),
        ("<p>He said “no”<sup>†</sup> twice<sup>4</sup>.</p>", "He said “no” twice.", 2),
        ("<p>The mill\u00b9 stood.\u00b2 It has 20 m\u00b2.</p>", "The mill stood. It has 20 m\u00b2.", 2),
        ("<p>See chapter <a href='#c3'>3</a> and <a href='http://a.b/c'>4</a>.</p>", "See chapter 3 and 4.", 0),
        ("<p>It has 20 m<sup>2</sup> and 10<sup>6</sup> or 2<sup>10</sup>.</p>",
         "It has 20 m\u00b2 and 10\u2076 or 2\u00b9\u2070.", 0),
        ("<p>So a<sup>2</sup> + b\u00b2 = c\u00b2, c\u00b2 - a\u00b2. What a\u00b2 - what?</p>",
         "So a\u00b2 + b\u00b2 = c\u00b2, c\u00b2 - a\u00b2. What a\u00b2 - what?", 0),
        ("<p>Such a\u00b9 mill, and I\u00b2 know.</p>", "Such a mill, and I know.", 2),
        ("<p>H<sub>2</sub>O, the 1<sup>er</sup> and n<sup>o</sup> 3.</p>", "H2O, the 1er and no 3.", 0),
        ("<p><sup>3</sup>He is a gas, 5 km<sup>2</sup>.</p>", "3He is a gas, 5 km\u00b2.", 0),
    ],
)  # fmt: skip
def test_note_marks_are_told_from_powers_and_links(tmp_path, written, spoken, marks):
    told = [f"{marks} note mark{'s' * (marks > 1)}"] if marks else []
    for book in (read_book_text(f"# One\n\n{written}", "T"), book_of(tmp_path, written)):
        assert said(book)[-1] == spoken and [one for one in book.left_out if "mark" in one] == told


def test_powers_that_were_kept_are_told(tmp_path):
    assert book_of(tmp_path, LONG).warnings == ("Raised numbers were kept as powers: mc\u00b2.",)
    assert not book_of(tmp_path, "<p>One.<sup>1</sup></p>").warnings


@pytest.mark.parametrize(
    "note",
    [
        "<aside epub:type='footnote' id='n'><p>A note.</p></aside>",
        "<div class='footnotes'><hr/><ol><li id='n'><p>See it.<a href='#r'>↩</a></p></li></ol></div>",
        "<ol><li id='n'><p>See the survey. <a href='#r'>↩</a></p></li></ol>",
        "<p id='n'><a href='#r'>1</a> See the survey.</p>",
        "<p><a id='n' href='#r'>[1]</a> See the survey.</p>",
        "<p id='n'>1. See the survey.</p>",
        "<section epub:type='endnotes'><p id='n'>See the survey.</p></section>",
        "<p class='endnote' id='n'>See the survey.</p>",
        "<table><tr id='n'><td>1</td><td>See <a href='#r'>^</a></td></tr></table>",
        "<p id='n'><sup><a href='#r'>1</a></sup> See the survey.</p>",
    ],
)
def test_notes_are_left_out_and_counted(tmp_path, note):
    book = book_of(tmp_path, f"<p>The mill<a id='r' href='#n'><sup>1</sup></a> stood.</p>{note}<p>It fell.</p>")
    assert said(book) == ["The mill stood.", "It fell."] and book.left_out[-2:] == ("1 note mark", "1 note")


def test_notes_in_a_file_of_their_own_are_left_out(tmp_path):
    book = book_of(tmp_path, "<p>The mill<a id='r' href='b.xhtml#n'>1</a> stood.</p>",
                   "<h1>Two</h1><p id='n'>See it. <a href='a%20b.xhtml#r'>back</a></p><p>It fell.</p>")  # fmt: skip
    assert said(book) == ["The mill stood.", "Two", "It fell."]


@pytest.mark.parametrize(
    "target", ["<h2 id='c'>3</h2>", "<p id='c'>The river rose.</p>", "<div id='c'><h2>3</h2></div>"]
)
def test_what_a_number_leads_to_is_no_note_by_that_alone(tmp_path, target):
    book = book_of(tmp_path, f"<p>As in part<a href='#c'>3</a> and so on.</p>{target}<p>End.</p>")
    assert len(said(book)) == 3


SHEET = (
    "/* .a { } */ .no, p.gone { Display : none !important } @media x { .yes { display: none } .seen { display: none } }"
)


@pytest.mark.parametrize(
    "hidden",
    [
        "<p hidden='hidden'>Gone.</p>",
        "<p hidden>Gone.</p>",
        "<p style='color: red; display:none'>Gone.</p>",
        "<p style='visibility: hidden'>Gone.</p>",
        "<p aria-hidden='true'>Gone.</p>",
        "<div hidden=''><p>Gone.</p><p>Gone.</p></div>",
        "<p class='small no'>Gone.</p>",
        "<p class='gone'>Gone.</p>",
    ],
)
def test_hidden_parts_are_left_out_and_counted(tmp_path, hidden):
    head = "<html><head><link rel='stylesheet' href='../s.css'/></head>"
    body = f"<p class='yes'>Seen</p>{hidden}<p class='seen' aria-hidden='false'>words.</p>"
    book = book_of(tmp_path, f"{head}<body>{body}</body></html>", **{"OEBPS/s.css": SHEET})
    assert said(book) == ["Seen", "words."] and book.left_out[-1] == "1 hidden part"
    if "class" not in hidden:
        assert said(read_book_text(f"# One\n\nSeen\n\n{hidden}\n\nwords.", "T"))[1:] == ["Seen", "words."]


def test_formulas_and_missing_files_are_named(tmp_path):
    formula = "<p>So <math><mi>x</mi><mo>=</mo><mn>5</mn></math> it is.</p>"
    book = book_of(tmp_path, formula)
    assert said(book)[0] == "So it is." and "1 formula" in book.left_out
    path = epub(tmp_path / "part.epub", **{f"OEBPS/text/{NAMES[2]}": None})
    assert "1 missing file" in read_book(path).left_out


def test_page_numbers_are_left_out_and_an_element_never_closed_is_not(tmp_path):
    numbers = (
        "<span epub:type='pagebreak' id='p2'>2</span><span class='pagenum'>[Pg 3]</span><a class='page-number'>4</a>"
    )
    book = book_of(tmp_path, f"<p>One {numbers}two.</p>")
    assert said(book) == ["One two."] and book.left_out[-1] == "3 page numbers"
    assert said(book_of(tmp_path, "<div><span hidden>One <p>two.</p></div><p>Three.</p>"))[-2:] == ["two.", "Three."]


@pytest.mark.parametrize(
    "sign",
    [
        "* * *",
        "***",
        "⁂",
        "#",
        "—",
        "~ ~ ~",
        "❦",
        "• • •",
        "oOo",
        "-o0o-",
        "x x x",
        "§",
        "* * *".replace(" ", "\u00a0"),
    ],
)
def test_signs_alone_end_a_scene(tmp_path, sign):
    for body in (f"</p><p>{sign}</p><p>", f"<br/>{sign}<br/>"):
        (chapter,) = book_of(tmp_path, f"<p>She left.{body}Morning.</p>").chapters
        assert [turn.text for turn in chapter.turns] == ["She left. [pause 1.5]", "Morning."]
    plain = read_book_text(f"She left.\n\n{sign}\n\nMorning.", "T")
    assert [turn.text for turn in plain.chapters[0].turns] == ["She left. [pause 1.5]", "Morning."]
    marked = read_book_text(f"# A\n\nShe left.\n\n\\{sign}\n\nMorning.", "T")
    if sign != "#":
        assert [turn.text for turn in marked.chapters[0].turns][1:] == ["She left. [pause 1.5]", "Morning."]


@pytest.mark.parametrize(
    "blank", ["<p>&#160;</p>", "<p/>", "<p><img src='orn.png' alt=''/></p>", "<p><br/></p>", "<hr/>"]
)
def test_a_blank_paragraph_ends_a_scene_unless_all_are_set_apart_so(tmp_path, blank):
    (chapter,) = book_of(tmp_path, f"<p>Night.</p>{blank}<p>Dawn.</p>").chapters
    assert [turn.text for turn in chapter.turns] == ["Night. [pause 1.5]", "Dawn."]
    (chapter,) = book_of(tmp_path, f"<p>One.</p>{blank}<p>Two.</p>{blank}<p>Three.</p>").chapters
    assert ("pause" in chapter.turns[0].text) == (blank == "<hr/>")


@pytest.mark.parametrize("spoken", ["“...!”", "?", "O", "XXX", "Ooo!", "1"])
def test_speech_without_words_is_no_break_of_scene(tmp_path, spoken):
    (chapter,) = book_of(tmp_path, f"<p>She left.</p><p>{spoken}</p><p>Morning.</p>").chapters
    assert chapter.turns[0].text == "She left."


def test_a_footnote_of_markdown_is_left_out_with_all_its_paragraphs():
    note = "[^1]: A note\n    goes on.\n\n    And on."
    book = read_book_text(f"# A\n\nThe mill[^1] stood[4].\n\n{note}\n\nIt fell, *see* [that](#b)[2](#fn2).", "T")
    assert said(book)[1:] == ["The mill stood.", "It fell, see that."]
    assert book.left_out == ("3 note marks", "1 note")
