"""Subtitle files as programs and people write them: rolling captions, arrows in the text, songs, dashes."""

import pytest
from higgs_tts.engine import read_cues

TIMES = "00:00:01,000 --> 00:00:03,000"


def cues_of(*texts):
    times = (f"00:00:{2 * at:02},000 --> 00:00:{2 * at + 2:02},000" for at in range(len(texts)))
    return "\n".join(f"{at}\n{time}\n{text}\n" for at, (time, text) in enumerate(zip(times, texts, strict=True), 1))


def said_in(text):
    return [" ".join(turn.text for turn in cue.turns) for cue in read_cues(text).cues]


A, B, C, D = "the mill stood still", "and nobody came home", "until the morning", "when it rained"


def test_a_sentence_that_breaks_off_is_no_broken_word():
    """Words are known from the whole file, for a cue has few."""
    texts = "Wait, we-\nwhat is that?", "The val-\nley.", "What have we here?"
    assert said_in(cues_of(*texts)) == ["Wait, we-what is that?", "The valley.", "What have we here?"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((A, f"{A}\n{B}", f"{B}\n{C}"), (A, B, C)),
        ((A, A, f"{A}\n{B}", B, f"{B}\n{C}", C), (A, "", B, "", C, "")),  # with cues of 10 ms
        ((f" \n{A}", f"{A}\n ", f"{A}\n<b>{B}</b>", f"{B}\n{C}"), (A, "", B, C)),
        ((f"{A}\n{B}", f"{A}\n{B}\n{C}", f"{B}\n{C}\n{D}"), (f"{A} {B}", C, D)),  # three lines
        ((A, f"{A}\n{B}\n{B}", f"{B}\n{C}"), (A, f"{B} {B}", C)),  # a repeat within a cue
        (("No.", "No.", "No."), ("No.", "No.", "No.")),
        ((f"{A}\n{B}", f"{B}\n{C}", D, "It fell.", "It rose."), (f"{A} {B}", f"{B} {C}", D, "It fell.", "It rose.")),
        ((A, B, C), (A, B, C)),
    ],
)
def test_rolling_captions_say_each_line_once(texts, said):
    sheet = read_cues(cues_of(*texts))
    assert tuple(said_in(cues_of(*texts))) == said and sheet.cues[0].text.strip() == texts[0].strip()
    is_less = sum(map(len, said)) < sum(
        len(" ".join(text.split()).replace("<b>", "").replace("</b>", "")) for text in texts
    )
    assert is_less == any("rolling captions repeat" in told for told in sheet.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("From the mill --> to the river.", "From the mill --> to the river."),
        ("-->", ""),
        ("00:01:00,000 --> 00:01:30,000", "00:01:00,000 --> 00:01:30,000"),
        ("Jump to 00:01:23,456 in the tape.", "Jump to 00:01:23,456 in the tape."),
        ("Go\nfrom here --> over there\nnow.", "Go from here --> over there now."),
        ("Press 5 --> 6", "Press 5 --> 6"),
        ("x --> 00:00:03", "x --> 00:00:03"),
        ("9:30 - 10:00 it is closed.", "9:30 - 10:00 it is closed."),
    ],
)
def test_arrows_and_times_in_a_cue_are_text(text, said):
    whole = f"1\n{TIMES}\n{text}\n\n2\n00:00:03,000 --> 00:00:05,000\nEnd.\n"
    assert said_in(whole) == [said, "End."] and not read_cues(whole).warnings
    assert [cue.start for cue in read_cues(whole).cues] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("text", "said", "song"),
    [
        ("♪ song ♪", "", "♪ song ♪"),
        ("♪ one\ntwo ♪", "", "♪ one two ♪"),
        ("♪ one ♪\nHello.", "Hello.", "♪ one ♪"),
        ("Hello. ♪ one ♪ Bye.", "Hello. Bye.", "♪ one ♪"),
        ("♪ it goes on", "", "♪ it goes on"),
        ("and ends ♪", "", "and ends ♪"),
        ("♫ la la ♫", "", "♫ la la ♫"),
        ("# la la #", "", "# la la #"),
        ("<i>♪♪ one ♪♪</i>", "", "♪♪ one ♪♪"),
        ("Hello.\n♪", "Hello.", None),
        ("We are # 1 here.", "We are # 1 here.", None),
        ("♪", "", None),
    ],
)
def test_songs_are_left_out_and_named(text, said, song):
    sheet = read_cues(cues_of(text, "End."))
    assert said_in(cues_of(text, "End.")) == [said, "End."]
    told = [f"Songs were not spoken: {song}. Remove the notes if they should be."] if song else []
    assert list(sheet.warnings) == told


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("- Hello.\n- Hi.", True),
        ("\u2013 Hello.\n\u2013 Hi.", True),
        ("-Hello.\n-Hi.", True),
        (">> Hello.\n>> Hi.", True),
        ("<i>- Hello.</i>\n- Hi.", True),
        ("- Anna: Hello.\n- Tom: Hi.", False),
        ("- Hello,\nfriend.", False),
        ("-5 degrees.\n-6 tomorrow.", False),
    ],
)
def test_two_speakers_without_names_are_told(text, is_told):
    sheet = read_cues(cues_of(text, "Anna: One.", "Tom: Two.", "Anna: Three."))
    told = "One voice speaks all lines with dashes, since they have no names: Cue 1."
    assert (told in sheet.warnings) == is_told
