"""Real-world subtitle files: times, words, speakers, and problems by cue."""

import pytest
from higgs_tts.engine import HiggsError, Turn, cue_names, read_cues
from higgs_tts.engine.prompt.cues import Cue, write_srt

TIMES = "00:00:01,000 --> 00:00:02,500"


def cues_of(*texts):
    """Return a file with one cue per second."""
    times = (f"00:00:{at:02},000 --> 00:00:{at + 1:02},000" for at in range(len(texts)))
    return "\n".join(f"{at}\n{time}\n{text}\n" for at, (time, text) in enumerate(zip(times, texts, strict=True), 1))


def said_in(text, **given):
    return [[(turn.speaker, turn.text) for turn in cue.turns] for cue in read_cues(text, **given).cues]


@pytest.mark.parametrize(
    "times",
    [
        TIMES,
        "0:00:01.000 --> 0:00:02.500",
        "00:01,000-->00:02,500",
        "00:01.0 --> 00:02.5",
        "  00:00:01,000  --> 00:00:02,500  X1:100 X2:200",
        "00:00:01.000 ---> 00:00:02.500 align:start position:10%",
        "00 : 00 : 01 , 000 --> 00 : 00 : 02 , 500",
    ],
)
def test_cue_times_are_read_in_every_common_form(times):
    (cue,) = read_cues(f"1\n{times}\nHello.").cues
    assert (cue.start, cue.stop, cue.text) == (1.0, 2.5, "Hello.") and cue.turns == (Turn("", "Hello."),)


def test_cue_numbers_marks_and_blank_lines_are_ignored():
    plain = "1\n00:00:01,000 --> 00:00:02,000\nOne\nand more.\n\n2\n00:00:03,000 --> 00:00:04,000\nTwo.\n"
    expected = read_cues(plain)
    assert [(cue.number, cue.turns[0].text) for cue in expected.cues] == [(1, "One and more."), (2, "Two.")]
    for other in (
        "\ufeff" + plain.replace("\n", "\r\n"),
        plain.replace("\n", "\r"),
        plain.replace("1\n00", "00").replace("2\n00", "00"),
        plain.replace("\n\n2\n", "\n2\n"),
        plain.replace("1\n00", "\n\n1\n\n00").replace("\n\n2", "\n\n\n\n2"),
    ):
        assert read_cues(other) == expected, repr(other)
    swapped = "2\n00:00:03,000 --> 00:00:04,000\nTwo.\n\n1\n00:00:01,000 --> 00:00:02,000\nOne\nand more.\n"
    assert read_cues(swapped) == expected


def test_spoken_numbers_are_text():
    text = f"1\n{TIMES}\n42\n\n2\n00:00:03,000 --> 00:00:04,000\n1984\n3\n00:00:05,000 --> 00:00:06,000\nThree.\n"
    assert said_in(text) == [[("", "42")], [("", "1984")], [("", "Three.")]]


def test_styles_marks_and_descriptions_are_not_spoken():
    text = cues_of(
        "<i>Hello</i> <font color='red'>you</font>\n<b>there</b>.",
        "{\\an8}{\\i1}Up here.{\\i0}",
        "- One.\n- Two.",
        "♪ la la la ♪",
        "# la la #",
        "[door slams]",
        "(SIGHS) Well, (as I said) yes.",
        "[laughs] Fish &amp; chips",
        "<|emotion:awe|>Oh! [pause 1] A < B, <emotion:fear>and -5.",
        "(somebody laughs)\n♪",
        "One\\Ntwo\\hthree",
    )
    sheet = read_cues(text)
    assert [" ".join(turn.text for turn in cue.turns) for cue in sheet.cues] == [
        "Hello you there.",
        "Up here.",
        "One. Two.",
        "",
        "",
        "",
        "Well, (as I said) yes.",
        "Fish & chips",
        "<|emotion:awe|>Oh! [pause 1] A < B, <emotion:fear>and -5.",
        "",
        "One two three",
    ]
    assert sheet.cues[0].text.startswith("<i>Hello</i>"), "what is shown stays as it was"
    dashes, songs, sounds = sheet.warnings
    assert dashes.endswith("since they have no names: Cue 3.")
    assert songs == "Songs were not spoken: ♪ la la la ♪, # la la #. Remove the notes if they should be."
    assert "[door slams]" in sounds and "..." in sounds


def test_a_speaker_s_name_applies_until_the_next():
    text = cues_of("Ann: One.", "and more.", "Bob: Two.\nAnn: Three.", "[Bob|volume:0.5] Four.", "Note: five.")
    assert said_in(text) == [
        [("Ann", "One.")],
        [("Ann", "and more.")],
        [("Bob", "Two."), ("Ann", "Three.")],
        [("Bob", "Four.")],
        [("Bob", "Note: five.")],
    ]
    assert read_cues(text).cues[3].turns[0].volume == 0.5
    assert said_in(cues_of("WAITER: Here.", "[MUSIC] Thanks.")) == [[("WAITER", "Here.")], [("WAITER", "Thanks.")]]
    assert said_in(cues_of("[Music]", "[Music]", "[laughs] Oh.", "[laughs] No.")) == [
        [],
        [],
        [("", "Oh.")],
        [("", "No.")],
    ]


def test_a_name_used_once_counts_if_every_cue_has_one():
    text = cues_of("Anna: Did you hear that?", "Tom: I did,\nand so did Bob.", "Anna: Then open it.")
    sheet = read_cues(text)
    assert said_in(text) == [
        [("Anna", "Did you hear that?")],
        [("Tom", "I did, and so did Bob.")],
        [("Anna", "Then open it.")],
    ]
    assert sheet.warnings == ("Tom has only one line. If that is a mistake, correct the script.",)
    assert said_in(cues_of("Anna (whispering): Hi.", "TOM [laughs]: Hello.", "Anna: (sighs) Oh.")) == [
        [("Anna", "<|style:whispering|>Hi.")],
        [("TOM", "<|sfx:laughter|>Hello.")],
        [("Anna", "Oh.")],
    ]


def test_names_without_a_voice_are_refused_or_get_one():
    text = cues_of("Ann: One.", "Bob: Two.", "Bob: Three.", "[Ann] Four.")
    with pytest.raises(HiggsError, match=r"Bob has no voice. Names with a voice: Ann."):
        read_cues(text, known=["Ann"])
    assert [who for cue in said_in(text, known=["Ann"], anyone=True) for who, _ in cue] == ["Ann", "Bob", "Bob", "Ann"]
    declared = "Ann = 1\nBob = ruth\n\n" + text
    assert cue_names(declared) == ({"Ann": "1", "Bob": "ruth"}, ("Ann", "Bob"))
    sheet = read_cues(declared)
    assert sheet.speakers == ["Ann", "Bob"] and sheet.head == {"Ann": "1", "Bob": "ruth"}
    assert said_in(cues_of("E = m c squared.")) == [[("", "E = m c squared.")]]


def test_webvtt_notes_are_skipped_and_names_read():
    text = """WEBVTT Kind: captions
X-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:900000

STYLE
::cue { color: lime }

NOTE not said

intro
00:01.000 --> 00:02.000 align:start
<v Anna>Hello <00:01.500><c.yellow>you</c></v>
<v.loud Tom>Yes.

NOTE
nor this

01:00:02.000 --> 01:00:03.000
Good &lt;day&gt;.
"""
    assert said_in(text) == [[("Anna", "Hello you"), ("Tom", "Yes.")], [("Tom", "Good <day>.")]]
    assert read_cues(text).cues[1].start == 3602 and read_cues(text).head == {}


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ("00:00:O3,000 --> 00:00:04,000", "is not a valid pair of times"),
        ("00:00:03,000 -->", "is not a valid pair of times"),
        ("00:00:05,000 --> 00:00:04,000", "ends before it starts"),
        ("00:00:03,000 -> 00:00:04,000", "is not a valid pair of times"),
        ("00:00:03,000 \u2192 00:00:04,000", "is not a valid pair of times"),
        ("00:00:03,000 => 00:00:04,000", "is not a valid pair of times"),
        ("00:00:03,000 \u2013> 00:00:04,000", "is not a valid pair of times"),
        ("00:00:03,000 00:00:04,000", "is not a valid pair of times"),
        (f"{'9' * 5000}:00:03,000 --> 00:00:04,000", "is not a valid pair of times"),
    ],
)
def test_a_faulty_cue_is_left_out_and_reported(times, why):
    text = f"7\n{TIMES}\nOne.\n\n8\n{times}\nTwo.\n\n9\n00:00:05,000 --> 00:00:06,000\nThree."
    sheet = read_cues(text)
    assert [(cue.number, cue.turns[0].text) for cue in sheet.cues] == [(7, "One."), (9, "Three.")]
    (told,) = sheet.warnings
    assert told.startswith("Cue 8 (line 6) was left out: ") and why in told and len(told) < 200
    with pytest.raises(
        HiggsError, match=rf"no usable cue is left\. Cue 8 \(line 2\) was left out: .*{why}\. Write times as"
    ):
        read_cues(f"8\n{times}\nTwo.")


def test_spoken_times_are_text():
    (cue,) = read_cues(f"1\n{TIMES}\nFrom\n9:30 - 10:00 it is closed.").cues
    assert cue.turns[0].text == "From 9:30 - 10:00 it is closed."


@pytest.mark.parametrize("text", ["", "Hello.\nGood bye."])
def test_a_text_without_cues_is_refused(text):
    with pytest.raises(HiggsError, match="there are no cues: no line looks like 00:00:01,000 --> "):
        read_cues(text)


def test_overlong_character_references_become_replacement_characters():
    """Python reads no number of more than 4,300 digits."""
    assert said_in(cues_of(f"One &#{'9' * 5000}; two &#65;.")) == [[("", "One \ufffd two A.")]]


def test_a_long_number_is_text():
    """Python reads no number of more than 4,300 digits."""
    (one, two) = read_cues(f"1\n{TIMES}\nOne.\n{'9' * 5000}\n00:00:04,000 --> 00:00:05,000\nTwo.").cues
    assert (one.number, two.number) == (1, 2) and "999" in one.text


def test_written_cues_can_be_read_again():
    cues = [Cue(0.0, 1.5, "One.", "Ann"), Cue(3661.0004, 3662.9996, "Two\nlines."), Cue(3663, 3664, "Three.", "Ann")]
    text = write_srt(cues)
    assert text.startswith("1\n00:00:00,000 --> 00:00:01,500\nAnn: One.\n\n2\n01:01:01,000 --> 01:01:03,000\nTwo\n")
    assert [(cue.start, cue.stop) for cue in read_cues(text).cues] == [(0, 1.5), (3661, 3663), (3663, 3664)]
    assert said_in(text) == [[("Ann", "One.")], [("Ann", "Two lines.")], [("Ann", "Three.")]]


def test_thousands_of_cues_are_read_quickly():
    text = "\n".join(
        f"{at}\n{at // 1800:02}:{at // 30 % 60:02}:{2 * at % 60:02},000 --> {at // 1800:02}:{at // 30 % 60:02}:"
        f"{2 * at % 60 + 1:02},500\n{'Ann' if at % 3 else 'Bob'}: Words {at}.\n"
        for at in range(1, 5001)
    )
    sheet = read_cues(text)
    assert [cue.number for cue in sheet.cues] == list(range(1, 5001)) and sheet.speakers == ["Ann", "Bob"]
