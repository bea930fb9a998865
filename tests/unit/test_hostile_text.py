"""Texts made to be slow: each took minutes to years when an expression tried all ways to divide it."""

import pytest
from higgs_tts.engine import (
    HiggsError,
    Pronunciations,
    SamplingParams,
    Turn,
    cue_names,
    planned_seconds,
    read_cues,
    read_dialogue,
    read_pronunciations,
    script_names,
)
from higgs_tts.engine.core.config import MAX_HINTS, MAX_PAUSE_SECONDS_IN_ALL, MAX_PRONOUNCED, MAX_PRONUNCIATIONS
from higgs_tts.engine.prompt.card import ModelCard
from higgs_tts.engine.prompt.chunking import split_sentences, split_text
from higgs_tts.engine.prompt.hints import TextCheck
from higgs_tts.engine.prompt.tags import TAGS, TextGuard, after_first_word

MANY = 100_000
GUARD = TextGuard([*TAGS, "<think>", "[PAD]"], False, "the tokenizer")
SCRIPTS = {
    "a declared voice with spaces": f"A = x{' ' * MANY}y",
    "spaces": f"Anna{' ' * MANY}: x",
    "lines of spaces": f"{' ' * 1000}\n" * (MANY // 1000),
    "voices": "\n".join(f"Voice{at} = v" for at in range(MANY // 10)) + "\nAnna: Hi.\nTom: Hello.",
    "names": "\n".join(f"Name{at}: Hi." for at in range(MANY // 15)),
    "unknown names of many": "Anna = 1\n" + "\n".join(f"Anna{at}: Hi." for at in range(MANY // 15)),
    "dashes": "Anna -" * (MANY // 6),
    "stars": "**Anna" * (MANY // 6),
    "settings": "[Anna|seed:" * (MANY // 11),
    "directions": "[S1] Hi.\n[S2] Yes.\n[S1] No." + "[S1]" * (MANY // 4),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_reading_a_script_takes_linear_time(script):
    script += "\nSaid."
    dialogue = read_dialogue(script)
    assert dialogue.turns[-1].text.endswith("Said.") and dialogue.head == script_names(script)[0]
    assert all(len(warning) < 1000 for warning in dialogue.warnings)
    check = TextCheck(GUARD, ModelCard(("en",), ()), True)
    assert len(check.hints(dialogue.said, dialogue.unsaid)) <= MAX_HINTS


@pytest.mark.parametrize("setting", ["seed:", "seed: ", "seed:\u00b2", "seed:" + "9" * 100, "volume:", "speed:"])
def test_a_setting_without_a_value_is_warned_about(setting):
    dialogue = read_dialogue(f"[Anna|{setting}] Hi.\n[Anna] Hello.")
    assert [(turn.speaker, turn.text, turn.seed) for turn in dialogue.turns] == [
        ("Anna", "Hi.", None),
        ("Anna", "Hello.", None),
    ]
    (told,) = dialogue.warnings
    assert "was left out for Anna. Use seed:24" in told


SIGNS = {
    "stops": "." * MANY + "x",
    "wide stops": "\u3002" * MANY + ",",
    "brackets behind a stop": "." + ")" * MANY + "x",
    "spaces before a pause": f"x{' ' * MANY}<|prosody:pause|>y",
    "a long word": "a" * MANY,
    "pauses": "[pause 1" + " " * MANY + "x] y",
}


@pytest.mark.parametrize("text", SIGNS.values(), ids=SIGNS)
def test_chunking_takes_linear_time(text):
    assert "".join("".join(split_text(text, 5.0)).split()) == "".join(text.split())
    assert len(split_sentences(text)) <= 2
    assert planned_seconds([Turn("", f"{text} Said.")], SamplingParams(), is_dialogue=False) > 0


def test_the_first_word_of_a_long_text_is_found_quickly():
    for text in ("a" * MANY, "a." * MANY, f"a{' ' * MANY}"):
        assert after_first_word(f"<|emotion:awe|>{text}") == f"<|emotion:awe|>{text}"
    assert after_first_word("<|emotion:awe|> " * 20_000 + "a b").endswith("|>b")


CUES = {
    "names of WebVTT": "<v " * (MANY // 3),
    "a name with spaces": f"<v{' ' * MANY}",
    "names": "\n".join(f"ANNA{at}: Hi." for at in range(MANY // 15)),
    "dashes": "-" * MANY,
    "brackets": "[a]" * (MANY // 3),
    "times": "\n".join("00:00:01,000 - - -" for _ in range(MANY // 20)),
}


@pytest.mark.parametrize("text", CUES.values(), ids=CUES)
def test_reading_a_cue_takes_linear_time(text):
    text = f"1\n00:00:01,000 --> 00:00:02,000\nAnna: Hello.\n{text}"
    assert len(read_cues(text).cues) == 1 and cue_names(text)[1]
    assert all(len(warning) < 1000 for warning in read_cues(text).warnings)


def test_a_thousand_pronunciations_apply_quickly_to_a_long_text():
    """All were tried at each letter."""
    words = tuple(("", f"word{at}", f"W{at}") for at in range(1000))
    text = "word word7 " * (MANY // 11)
    assert Pronunciations(words).apply(text) == text.replace("word7", "W7")


def test_overlong_lists_of_pronunciations_are_refused():
    with pytest.raises(HiggsError, match=f"at most {MAX_PRONOUNCED} characters"):
        read_pronunciations(f"{'a' * 1000} = b")
    with pytest.raises(HiggsError, match="has 10,001 entries"):
        read_pronunciations("\n".join(f"a{at} = b" for at in range(MAX_PRONUNCIATIONS + 1)))


def test_nested_commands_are_refused():
    """Each time one is left out, another one closes around it."""
    with pytest.raises(HiggsError, match="nested commands"):
        GUARD.clean("<|" * 50_000 + "x" + "|>" * 50_000, lambda warning: None)


def test_only_the_first_of_many_unknown_tags_are_named():
    warnings = []
    assert GUARD.clean("Hi" + "".join(f"<|a{at}|>" for at in range(20_000)), warnings.append) == "Hi"
    assert len(warnings) == 21 and warnings[-1] == "19,980 more commands and unknown tags were left out."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[pause " + "x" * 5000 + "] Hi.", "has no valid length"),
        ("<|" + "x" * 5000 + "|> Hi.", "Unknown tag"),
        ("<b " + "x" * 190 + "> Hi.", "is read aloud"),
        ("(" + " " * 5000 + "laughs) Hi.", "is read aloud"),
    ],
)
def test_a_warning_quotes_one_line_at_most(text, told):
    (hint,) = TextCheck(GUARD, ModelCard(), True).hints(text)
    assert told in hint.says and len(hint.says) < 250


def test_the_total_of_pauses_is_limited():
    with pytest.raises(HiggsError, match=r"add up to 1,200 s, but at most 600 s are allowed at once\. Shorten them"):
        planned_seconds([Turn("", "Hello. " + "[pause 60]" * 20)], SamplingParams(), is_dialogue=False)
    turns = [Turn("Anna", "Hello. [pause 60]")] * 11
    with pytest.raises(HiggsError, match="add up to 660 s"):
        planned_seconds(turns, SamplingParams(), is_dialogue=True)
    assert planned_seconds(turns[1:], SamplingParams(), is_dialogue=True) > MAX_PAUSE_SECONDS_IN_ALL
    story = [Turn("Anna", "A long story is told. " * 60 + "[pause 60]")] * 11
    assert planned_seconds(story, SamplingParams(), is_dialogue=True) > MAX_PAUSE_SECONDS_IN_ALL
