"""Titles are spoken with the sentence after them."""

import pytest
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.prompt.chunking import split_sentences
from higgs_tts.engine.prompt.plan import plan
from higgs_tts.engine.prompt.script import Turn
from higgs_tts.engine.prompt.tags import every_tag

PROSE = "The lamp had been dark for years. Then a letter came."
PAUSE, LONG = " <|prosody:pause|>", " <|prosody:long_pause|>"


def chunks(text, gap=0.6, follows=every_tag, seconds=30.0, is_dialogue=False):
    params = SamplingParams(paragraph_gap=gap)
    planned = plan([Turn("", text)], params, is_dialogue, lambda *_: (seconds, 10.0), follows=follows)
    return [chunk.text for chunk in planned.chunks]


@pytest.mark.parametrize(
    "title",
    [
        "The Lighthouse",
        "Chapter 1",
        "III",
        "1. The Letter",
        "“The Letter”",
        "The Lighthouse (1920)",
        "第一章",
        "Глава первая",
        "Part One\n\nThe Letter",
    ],
)
def test_a_title_is_spoken_with_the_paragraph_after_it(title):
    lines = title.split("\n\n")
    joined = "\n\n".join([*(line + PAUSE for line in lines), PROSE])
    assert chunks(f"{title}\n\n{PROSE}\n\n{title}\n\n{PROSE}") == [joined, joined]
    assert split_sentences(joined) == [*lines, *split_sentences(PROSE)], "subtitles and words are as written"


@pytest.mark.parametrize(
    "text",
    [
        f"{PROSE}\n\n{PROSE}",
        f"Dear Anna,\n\n{PROSE}",
        f"Hello!\n\n{PROSE}",
        f"Ingredients:\n\n{PROSE}",
        f"- Bread\n\n{PROSE}",
        "Bread\n\nCheese\n\nApples",
        f"A line\nand another\n\n{PROSE}",
        f"The Lighthouse\n\n<|emotion:awe|>{PROSE}",
        f"<|emotion:awe|>The Lighthouse\n\n{PROSE}",
        f"{'A long heading ' * 6}here\n\n{PROSE}",
        f"The Lighthouse [pause 1]\n\n{PROSE}",
    ],
)
def test_other_paragraphs_stay_apart(text):
    assert chunks(text) == [part.replace(" [pause 1]", "").strip() for part in text.split("\n\n")]


def test_the_pause_after_a_title_is_about_the_gap_s_and_only_one_that_the_model_follows():
    text = f"The Letter\n\n{PROSE}"
    assert chunks(text, gap=0.0) == [text] and chunks(text, gap=1.0) == [f"The Letter{LONG}\n\n{PROSE}"]
    assert chunks(text, gap=3.0) == ["The Letter", PROSE], "no tag is that long"
    assert chunks(text, follows=lambda tag: False) == [text]
    assert chunks(text, is_dialogue=True) == ["The Letter", PROSE]


def test_a_title_is_not_cut_from_its_sentence():
    title, sentence = "A Title of Some Length", "Though it was late, she read it all, and then, in the dark, again."
    first, *others = chunks(f"{title}\n\n{sentence}", seconds=4.0)
    assert first.startswith(f"{title}{PAUSE}\n\nThough it was late,") and others
