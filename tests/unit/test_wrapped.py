"""Hard-wrapped prose, broken words and invisible characters are read as they were meant."""

import pytest
from higgs_tts.engine import SamplingParams, Turn, read_book_text, read_cues
from higgs_tts.engine.prompt.chunking import split_sentences
from higgs_tts.engine.prompt.plan import plan
from higgs_tts.engine.prompt.script import read_pauses
from higgs_tts.engine.prompt.wrapped import joined_words, mended

WRAPPED = """The mill at the end of the valley had stood empty for
ten years before the new owner came with a cart and a
lamp to see whether the wheel could be made to turn
again. She walked around it twice and then she sat on
the wall and looked at the river for a long time."""
LONGER = "\n".join([WRAPPED, "Nobody said that it would do, or that the old roof", "could wait.\n", WRAPPED])


def test_wrapped_prose_is_cut_as_if_it_were_not_wrapped():
    flat = " ".join(WRAPPED.split())
    for text in (WRAPPED, WRAPPED.replace("\n", "  \n  "), f"\n{WRAPPED}\n"):
        assert (
            split_sentences(read_pauses(text).text)
            == split_sentences(flat)
            == [
                flat[: flat.index(" She")],
                flat[flat.index("She") :],
            ]
        )
    for most in ((4.0, 99.0), (8.0, 99.0), (30.0, 99.0)):
        plans = [
            plan([Turn("", text)], SamplingParams(), False, lambda *_, most=most: most) for text in (WRAPPED, flat)
        ]
        assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (WRAPPED, 1),
        (LONGER, 3),  # and a gap between paragraphs
        (f"Dear Anna,\n\n{WRAPPED}\n\nBest,\nTom", 6),
        (f"{WRAPPED}\n[pause 2]\n{WRAPPED}", 3),
        (f"{WRAPPED}\n- a cart\n- a lamp", 3),
        ("Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\nRough winds do shake the "
         "darling buds of May,\nAnd summer's lease hath all too short a date;", 4),
        ("so much depends\nupon\n\na red wheel\nbarrow", 5),
        ("- Buy twenty pounds of flour at the old mill\n- Bring the long ladder back to the house\n- Sweep", 3),
        ("1. Open the box that stands behind the door of\n2. the mill", 2),
        ("Two lines of about the same length, both full,\nAnd a third that begins with a capital letter.", 2),
        ("第一行写得很长很长很长很长很长很长很长很长很长很长很长很长很长很长很长很长很长很长很长。\n第二行。", 2),
        ("a\nb\nc\n" * 20, 61),
    ],
)  # fmt: skip
def test_only_prose_is_unwrapped(text, lines):
    assert mended(text).count("\n") + 1 == lines


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("the val-\nley", "the valley"),
        ("the well-\nknown road", "the well-known road"),
        ("a re-  \n   markable sight", "a remarkable sight"),
        ("Jean-\nPaul", "Jean-Paul"),
        ("VAL-\nLEY", "VALLEY"),
        ("twenty-\none", "twenty-one"),
        ("a blue-\neyed cat", "a blue-eyed cat"),
        ("the pre-\nand post-war years", "the pre- and post-war years"),
        ("up-to-\ndate, up-\nto-date", "up-to-date, up-to-date"),
        ("a T-\nshirt", "a T-shirt"),
        ("a river-boat, the river-\nboat", "a river-boat, the river-boat"),
        ("the Mühl-\nrad", "the Mühlrad"),
        ("no -\nyes, no--\nyes, 20-\n30", "no -\nyes, no--\nyes, 20-\n30"),
        ("val\u00ad\nley", "valley"),
        ("cafe\u0301 a\u0300 la", "caf\u00e9 \u00e0 la"),
    ],
)
def test_words_broken_at_line_ends_are_joined(written, said):
    assert mended(written) == said


HYPHENS = """The mill stood at the end of the val-
ley, and the well-
known road went by. It was a re-
markable sight.

Nobody came."""


def test_broken_words_are_joined_in_every_kind_of_text():
    said = ["The mill stood at the end of the valley, and the well-known road went by. It was a remarkable sight."]
    assert split_sentences(read_pauses(HYPHENS).text)[0] + " It was a remarkable sight." == said[0]
    for text in (HYPHENS, f"# A\n\n{HYPHENS}"):
        turns = [turn.text for turn in read_book_text(text, "T").chapters[0].turns]
        assert turns[-2:] == [*said, "Nobody came."]
    cue = "1\n00:00:01,000 --> 00:00:02,000\n" + HYPHENS.partition("\n\n")[0]
    assert [turn.text for turn in read_cues(cue).cues[0].turns] == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Lei\u00adgh pro\u00adfited", "Leigh profited"),
        ("zero\u200bwidth", "zerowidth"),
        ("a\u2060b\ufeffc", "abc"),
        ("\u202aone\u202c \u200etwo\u200f", "one two"),
        ("f\u200cish \u200dand", "fish and"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("plain", "plain"),
    ],
)
def test_invisible_characters_go_where_they_mean_nothing(written, said):
    assert mended(written) == said == read_pauses(written).text


@pytest.mark.parametrize("sign", ["a-\n", "a\n", "- \n", "\u00ad", "\u200b", "a" * 50 + "\n", "a b " * 20 + "\n", "a-"])
def test_long_texts_are_mended_quickly(sign):
    assert len(mended(sign * 100_000)) <= len(sign) * 100_000
    assert joined_words("x" * 1_000_000 + "-\n")
