"""Sheets of lines: CSV, JSON and plain text give equal rows, and errors name the row."""

import json

import pytest
from higgs_tts.engine import HiggsError, read_lines, with_seed

ROWS = [("hello", "Anna", "Hello, you.", None), ("002", "", 'Say "yes".', 7), ("team/bye", "Anna", "", None)]
OBJECTS = [
    {"id": "hello", "speaker": "Anna", "text": "Hello, you."},
    {"Text": 'Say "yes".', "seed": 7, "speaker": None},
    {"id": "team\\bye.wav", "speaker": " ANNA ", "text": "", "seed": ""},
]


def told(text):
    return [(row.id, row.speaker, row.text, row.seed) for row in read_lines(text)]


@pytest.mark.parametrize(
    "text",
    [
        'id,speaker,text,seed\nhello,Anna,"Hello, you.",\n,,"Say ""yes"".",7\nteam/bye,anna,,\n',
        '\ufeffSpeaker; Text ;ID;Seed\r\nAnna;Hello, you.;hello;\r\n\r\n;"Say ""yes"".";;7\r\nAnna;;team\\bye.wav\r\n',
        'id\ttext\tspeaker\tseed\nhello\tHello, you.\tAnna\n\t"Say ""yes""."\t\t7\nteam/bye\t\tAnna\n',
        json.dumps(OBJECTS, indent=2),
    ],
)
def test_every_format_gives_the_same_rows(text):
    assert told(text) == ROWS


def test_plain_text_and_short_json_become_rows():
    assert told("[pause 1] One.\n\n  Two, text. \n") == [
        ("001", "", "[pause 1] One.", None),
        ("002", "", "Two, text.", None),
    ]
    assert told('{"a": "One.", "b": {"text": "Two.", "seed": "3"}}') == [("a", "", "One.", None), ("b", "", "Two.", 3)]
    assert told('["One.", {"text": "Two."}]') == [("001", "", "One.", None), ("002", "", "Two.", None)]
    assert told('text\n"One,\ntwo."') == [("001", "", "One,\ntwo.", None)]


@pytest.mark.parametrize(
    "text",
    [
        'id,speaker,text,seed\nhello,Anna,"Hello, you.",\n,,"Say ""yes"".",7\nteam/bye,anna,,\n',
        '\ufeffSpeaker; Text ;ID\r\nAnna;Hello, you.;hello\r\n\r\n;"Say ""yes"".\nTwice.";\r\nAnna;;team\\bye.wav\r\n',
        "id\ttext\nhello\tHello, you.\n\tTwo",
        json.dumps(OBJECTS, indent=2),
        '{"a": "One.", "b": {"text": "Two.", "SEED": "3"}}',
        '["One.", {"text": "Two, ü."}]',
        "[pause 1] One.\n\n  Two, text. \n",
    ],
)
def test_writing_a_seed_into_a_row_keeps_all_else(text):
    before = told(text)
    for row, (name, speaker, said, _) in enumerate(before):
        after = told(with_seed(text, name, 41))
        assert after[row] == (name, speaker, said, 41)
        assert after[:row] + after[row + 1 :] == before[:row] + before[row + 1 :]
        again = with_seed(with_seed(text, name, 41), name, 42)
        assert again == with_seed(text, name, 42), "no column comes twice"


def test_a_seed_for_no_row_or_out_of_range_is_refused():
    with pytest.raises(HiggsError, match="row 'c' no longer exists"):
        with_seed("id,text\na,One", "c", 1)
    with pytest.raises(HiggsError, match="row 1: seed is '-1'"):
        with_seed("id,text\na,One", "a", -1)
    with pytest.raises(HiggsError, match="not a known column"):
        with_seed("id,text,what\na,One,x", "a", 1)


def test_a_byte_order_mark_alone_is_no_row():
    """Windows begins files with it."""
    with pytest.raises(HiggsError):
        read_lines("\ufeff")


def test_several_texts_give_one_row_each():
    rows = read_lines(" One. ", "", "id,text\na,Two", '{"a": "Three"}')
    assert [(row.id, row.text) for row in rows] == [
        ("001", "One."),
        ("002", ""),
        ("003", "id,text\na,Two"),
        ("004", '{"a": "Three"}'),
    ]
    with pytest.raises(HiggsError, match="there are no lines"):
        read_lines("", " ")


@pytest.mark.parametrize("text", ["Hello there, text, me later.\nBye.", "{name} is here.\nYes."])
def test_plain_text_is_not_taken_for_a_sheet(text):
    assert [row.text for row in read_lines(text)] == text.split("\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (" \n", "there are no lines. Enter"),
        ("id,text\na,One\nA,Two", "row 2: the id 'A' is already used by row 1. Give each row its own id"),
        ("id,text\n002,One\n,Two", "row 2: the id '002' is already used by row 1"),
        ('{"a": "One", "a": "Two"}', "row 2: the id 'a' is already used by row 1"),
        ("id,text,mood\na,One,happy", "the header: 'mood' is not a known column. Columns are id, speaker, text, seed"),
        ("id,speaker,spoken\na,Anna,One", "the header: 'spoken' is not a known column"),
        ("id,speaker\na,Anna", "the header has no column named text"),
        ("text,id,text\nOne,a,Two", "the header: the column text appears twice"),
        ('[{"text": "One"}, {"line": "Two"}]', "row 2: 'line' is not a known column"),
        ('[{"text": "One", "Text": "Two"}]', "row 1: the column text appears twice"),
        ("id,text\na,One, two", "row 1 has 3 cells, but the header has 2 columns. Put text that contains a comma"),
        ('id,text\na,One\nb,"Two', "row 2 cannot be read as CSV .* double quote"),
        ('id,"text\n', "row 1 cannot be read as CSV"),
        ("text,seed\nOne,many", "row 1: seed is 'many'. Write a whole number from 0 to 18446744073709551615"),
        ("text,seed\nOne,-1", "row 1: seed is '-1'"),
        ("text,seed\nOne,18446744073709551616", "row 1: seed is '1844"),
        ('[{"text": "One", "seed": 1.5}]', "row 1: seed is 1.5"),
        ('[{"text": ["One"]}]', r'row 1: text is \["One"\]. Write it as a string'),
        ('[{"text": true}]', "row 1: text is true"),
        ('[{"text": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}]", "row 1: text is .{,80}. Write it as a string"),
        (
            '[{"id": "' + "x" * 10_000 + '", "text": "a"}, {"id": "' + "x" * 10_000 + '", "text": "b"}]',
            r"xx\.\.\.xx+' is",
        ),
        ('["One", 2]', "row 2 is not an object. Write it like this"),
        ('[{"text": "One"},]', "look like JSON but are invalid .*line 1 column"),
        ('{"a":' * 100_000, "look like JSON but are invalid"),
    ],
)
def test_errors_name_the_row_and_the_remedy(text, error):
    with pytest.raises(HiggsError, match=error):
        read_lines(text)


def test_half_surrogates_are_replaced():
    (row,) = read_lines('[{"text": "One \\ud83d", "speaker": "A\\udc00"}]')
    assert row.text.encode() and row.speaker == "A?"
