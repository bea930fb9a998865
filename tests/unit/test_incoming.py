"""Text that arrives in pieces: the same units however it was cut."""

import itertools
import random

import pytest
from higgs_tts.engine.prompt import incoming as incoming_module
from higgs_tts.engine.prompt.chunking import split_sentences
from higgs_tts.engine.prompt.incoming import IncomingText


def units(*pieces, granularity="sentence"):
    incoming = IncomingText(granularity)
    return [incoming.add(piece) for piece in pieces], incoming.flush()


def all_units(pieces, granularity):
    added, rest = units(*pieces, granularity=granularity)
    return [*(unit for some in added for unit in some), *rest]


def test_a_sentence_is_complete_once_the_next_begins():
    added, rest = units("One ap", "ple.", " ", "Two", " apples! ")
    assert added == [[], [], [], ["One apple."], []] and rest == ["Two apples!"]


def test_a_finished_line_is_complete():
    assert units("One apple\n", "Two.\n\n")[0] == [["One apple"], ["Two."]]


@pytest.mark.parametrize(
    "text",
    ["Dr. Who", "It costs 3.50 euros", '"Really?" she asked', "See e.g. this", "Chapter 3. Mai", "J. Smith", "No. 5"],
)
def test_a_full_stop_inside_a_sentence_does_not_end_it(text):
    assert units(*text) == ([[]] * len(text), [text])


def test_sentences_in_other_scripts_need_no_space():
    assert units("你好。", "今天", "好吗？", "好")[0] == [[], ["你好。"], [], ["今天好吗？"]]


def test_granularity_may_be_clause_or_none():
    text = "Well, yes; but no. So"
    assert units(text, granularity="clause") == ([["Well,", "yes;", "but no."]], ["So"])
    assert units("One. ", "Two.\n", "Three.", granularity="none") == ([[], [], []], ["One. Two.\nThree."])


def test_tags_and_pauses_stay_whole_and_tags_are_carried_over():
    text = "<|emotion:awe|>One. Two [pause 2] Three. <|emotion:anger|>Four.\n\nFive. [pause 1] Six."
    wanted = ["<|emotion:awe|>One.", "<|emotion:awe|>Two [pause 2]", "<|emotion:awe|>Three.", "<|emotion:anger|>Four."]
    assert all_units([text], "sentence") == all_units(text, "sentence") == [*wanted, "Five. [pause 1]", "Six."]


def test_text_without_words_makes_no_unit():
    assert all_units([" ... ", "\n\n", "[pause 2]", "<|emotion:awe|>"], "sentence") == []
    assert all_units([" ...", "?"], "none") == []


def test_a_flush_ends_a_paragraph():
    incoming = IncomingText("sentence")
    assert incoming.add("<|emotion:awe|>One.") == [] and incoming.flush() == ["<|emotion:awe|>One."]
    assert incoming.flush() == [] and incoming.add("Two. Three") == ["Two."]


@pytest.mark.parametrize("unit", ["word ", "x", "字", "<", "[", ". ", "e.g. ", ", "])
def test_endless_text_is_cut_at_last(unit):
    text = unit * (3000 // len(unit))
    incoming = IncomingText("sentence")
    said = incoming.add(text)
    assert len(incoming) < 600
    kept = "".join([*said, *incoming.flush()])
    if any(map(str.isalnum, unit)):
        assert said and kept.replace(" ", "") == text.replace(" ", "")
        assert len(said) > 3


TEXTS = [
    'He said "Stop!" and left. Dr. Who came (late). "Why?" No. 5 is alive... Is it? Yes! 3.14 is pi; e.g. here, there.',
    "<|emotion:awe|>Look! <|prosody:pause|> There. [pause] Now.\nSo\n\n<|prosody:speed_fast|>Go, go… on. 你好。好！",
    "A sentence. -\nA sentence. ",
    "A sentence. [pause 1]?",
    "A [tag,3\n “",
    'So <Dr[pause]<".<…-',
    "A < b and c > d. It is [sic] so. [pause] Yes. " * 6 + "and on " * 120 + "the end. Really.",
]


@pytest.mark.parametrize("granularity", ["sentence", "clause", "none"])
@pytest.mark.parametrize("text", TEXTS)
def test_units_do_not_depend_on_the_pieces(text, granularity):
    whole = all_units([text], granularity)
    assert all_units(text, granularity) == whole
    dice = random.Random(5)
    for _ in range(20):
        edges = sorted({0, len(text), *(dice.randrange(len(text)) for _ in range(dice.randrange(1, 30)))})
        assert all_units([text[a:b] for a, b in itertools.pairwise(edges)], granularity) == whole


def test_sentences_are_those_of_a_whole_text():
    text = TEXTS[0]
    assert all_units(text, "sentence") == split_sentences(text)


@pytest.mark.parametrize("unit", ["\n]", "a\n", "[pause]", "<|emotion:awe|>\n", "]", "e.g. a]", "[ ]", "\n", "a. "])
def test_the_work_is_linear_in_the_text(monkeypatch, unit):
    """Characters that are cut: a few times those that arrive, whatever they are."""
    cut, made = [], incoming_module.Cutter

    def counted(text, *given):
        cut.append(len(text))
        return made(text, *given)

    monkeypatch.setattr(incoming_module, "Cutter", counted)
    text = unit * (19_200 // len(unit))
    units(text)
    assert sum(cut) < 8 * len(text)


def test_white_space_without_an_end_takes_no_memory():
    incoming = IncomingText("sentence")
    for _ in range(100):
        assert incoming.add(" \n" * 1000) == []
    assert len(incoming) < 600
    assert incoming.add("<|emotion:awe|>One. Two") == ["<|emotion:awe|>One."]
