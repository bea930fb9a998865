"""Splitting of long text, the state that chunks carry over, and estimates of length."""

import random
import re
from itertools import pairwise

import pytest
from higgs_tts.engine.prompt.chunking import Cutter, estimate_frames, estimate_seconds, split_script, split_text
from higgs_tts.engine.prompt.script import Script
from higgs_tts.engine.prompt.tags import TAG_LIKE, TAGS, delivery_slot


def sentences(text):
    return [text[start:end].strip() for start, end in pairwise(Cutter(text, 1).sentences)]


@pytest.mark.parametrize(
    "text",
    [
        "One two three. /Four five six! /Seven eight nine? /Ten ten ten.",
        "Then he waited and waited… /And then she came at last.",
        "He said “No way at all.” /Then he went home.",
        'She asked (why not today?) /Nobody had an answer.',
        "今天天气很好。/我们去公园走走吧！/你想一起来吗？/好。",
        "他说：「我们走吧。」/她点了点头就走。",
        "आज मौसम अच्छा है। /हम बाहर चलते हैं। /तुम भी आओ।",
        "هل تريد أن تأتي معنا؟ /نعم أريد ذلك جدا.",
        "A line without a stop\n/Another line without\n\n/A third line it is",
        "Really?! /You cannot be serious.",
        "Wait here for me. <|prosody:long_pause|> /Now come along.",
        "That is so funny. /<|sfx:laughter|>Haha, so it is.",
        "One more thing. /<|emotion:awe|><|style:singing|> La la la.",
    ],
)  # fmt: skip
def test_text_is_split_into_sentences(text):
    assert sentences(text.replace("/", "")) == [part.strip() for part in text.split("/")]


@pytest.mark.parametrize(
    "sentence",
    [
        "The value of pi is 3.14 and e is 2.72 or so.",
        "Dr. Smith met Mrs. Jones and Prof. Li there.",
        "Use a tool, e.g. A hammer, i.e. Something hard.",
        "It was J. R. R. Tolkien of the U.K. Himself.",
        "See example.org or mail me at a.b@c.de Today.",
        "Look at Fig. 2 in No. 5 of Jan. 2020 please.",
        "Es war am 3. Mai um z.B. Mittag in Berlin.",
        "“Stop!” he cried and “why?” she asked him.",
        "Bring pens, paper etc. (as listed) to class.",
        "Well... maybe we should go home right now.",
        "版本３．１４已经发布了。",
    ],
)
def test_marks_inside_a_sentence_do_not_end_it(sentence):
    assert sentences("And so it goes on. " + sentence) == ["And so it goes on.", sentence]


def test_no_may_end_a_sentence():
    assert sentences("I said no. Then I left.") == ["I said no.", "Then I left."]


def test_long_sentence_is_cut_at_clauses_then_spaces():
    text = "When the rain had stopped, the children ran out into the garden, and everyone was glad."
    assert split_text(text, 2.6) == [
        "When the rain had stopped,",
        "the children ran out into the garden,",
        "and everyone was glad.",
    ]
    words = "one two three four five six seven eight nine ten eleven twelve"
    chunks = split_text(words, 1.5)
    assert len(chunks) == 3 and " ".join(chunks) == words


def test_chinese_is_cut_at_clauses_then_characters():
    assert split_text("春天来了花都开了，孩子们在外面玩，大家都很高兴。", 2.1) == [
        "春天来了花都开了，",
        "孩子们在外面玩，",
        "大家都很高兴。",
    ]
    chunks = split_text("我" * 40 + "，", 2.0)
    assert len(chunks) == 5 and "".join(chunks) == "我" * 40 + "，"
    assert all(not chunk.startswith("，") for chunk in chunks)


def test_chunks_are_filled_evenly_and_within_the_limit():
    text = "This is a sentence of some words. " * 31
    chunks = split_text(text, 30)
    seconds = [estimate_seconds(chunk) for chunk in chunks]
    assert len(chunks) == 3 and max(seconds) <= 30 and min(seconds) > 0.8 * max(seconds)


def test_the_first_chunk_may_be_shorter_than_the_others():
    text = " ".join(f"This is sentence number {number} of many." for number in range(30))
    chunks, _ = split_script(Script(text), 20, 6)
    seconds = [estimate_seconds(chunk) for chunk in chunks]
    assert " ".join(chunks) == text and 3 < seconds[0] <= 6 and min(seconds[1:]) > 10 and max(seconds) <= 20
    assert split_script(Script(text), 0, 6)[0] == [text], "0 never splits"
    long = "word " * 40 + "end. " + text
    assert split_script(Script(long), 20, 6)[0][0] == "word " * 40 + "end.", "no sentence is cut for it"


def test_short_or_unlimited_text_is_one_chunk():
    assert split_text("  One. Two.\n", 30) == ["One. Two."]
    assert split_text(" One. Two. " * 500, 0) == [(" One. Two. " * 500).strip()]
    assert split_text(" \n ", 30) == [""] == split_text("", 0)


def test_delivery_tags_are_carried_over_and_effects_are_not():
    text = (
        "<|emotion:awe|><prosody:speed_slow><|sfx:sigh|>Ah, one is here. Two is here. <|prosody:pause|> Three is here."
    )
    assert split_text(text, 1.8) == [
        "<|emotion:awe|><prosody:speed_slow><|sfx:sigh|>Ah, one is here.",
        "<|emotion:awe|><prosody:speed_slow>Two is here. <|prosody:pause|>",
        "<|emotion:awe|><prosody:speed_slow>Three is here.",
    ]


def test_a_new_tag_replaces_the_carried_tag_of_its_kind():
    text = "<|emotion:awe|><|style:singing|>One is here. <|emotion:fear|>Two is here. Three is here."
    assert split_text(text, 1.2) == [
        "<|emotion:awe|><|style:singing|>One is here.",
        "<|style:singing|><|emotion:fear|>Two is here.",
        "<|emotion:fear|><|style:singing|>Three is here.",
    ]


def test_tags_end_with_their_paragraph():
    text = "<|emotion:awe|>One is here. Two is here.\nThree is here.\n \nFour is here. <|emotion:fear|>Five is here."
    assert split_text(text, 1.2) == [
        "<|emotion:awe|>One is here.",
        "<|emotion:awe|>Two is here.",
        "<|emotion:awe|>Three is here.",
        "Four is here.",
        "<|emotion:fear|>Five is here.",
    ]


def test_tags_are_carried_into_a_sentence_cut_in_two():
    text = "<|emotion:awe|>One is here and there, two is here and there."
    assert split_text(text, 2.0) == ["<|emotion:awe|>One is here and there,", "<|emotion:awe|>two is here and there."]


def test_a_pause_ends_a_chunk_and_other_tags_begin_one():
    assert split_text("One and two and <|prosody:pause|> three and four", 1.7) == [
        "One and two and <|prosody:pause|>",
        "three and four",
    ]
    assert sentences("Stop it! <|sfx:laughter|>\nhaha, no") == ["Stop it! <|sfx:laughter|>\nhaha, no"]


def test_tags_in_mid_sentence_and_unknown_ones_are_not_carried():
    text = "<|emotion:hapy|>One <|emotion:awe|> is here. Two is here."
    assert split_text(text, 1.2) == ["<|emotion:hapy|>One <|emotion:awe|> is here.", "Two is here."]


SAMPLES = [*TAGS[:2], *TAGS[-12:-8], "<prosody:pitch_low>", "<emotion:nope>", "<|made up, with. stops|>", "<| x |>"]
SAMPLES += [
    " ",
    " ",
    "\n",
    "\n\n",
    ". ",
    "! ",
    "?",
    "…",
    "。",
    "，",
    ", ",
    "；",
    "।",
    "؟ ",
    '."',
    "”",
    "「",
    "」",
    "(",
    ")",
]
SAMPLES += [
    "Hello",
    "Dr",
    "3.14",
    "e.g.",
    "我们走吧",
    "カップ",
    "नमस्ते",
    "مرحبا",
    "é",
    "e\u0301",
    "😀",
    "👩\u200d🚀",
    "\ue000",
]
SAMPLES += ["Supercalifragilisticexpialidocious" * 3, "\r\n", "\t", "<", "|>", "<|", "1", "-", "—"]


def without_space(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("seed", range(150))
def test_chunking_loses_no_text_and_cuts_no_tag(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice(SAMPLES) for _ in range(rng.randint(1, 120)))
    limit = rng.choice([0.1, 0.5, 1.5, 4.0])
    rest, chunks = without_space(text), split_text(text, limit)
    for number, chunk in enumerate(chunks):
        while number and not rest.startswith(without_space(chunk)):  # it can only be that a tag was added again
            match = TAG_LIKE.match(chunk)
            assert match and delivery_slot(match[0]), (chunk, rest)
            chunk = chunk[match.end() :]
        assert rest.startswith(without_space(chunk))
        rest = rest[len(without_space(chunk)) :]
    assert not rest
    kept = [match[0] for chunk in chunks for match in TAG_LIKE.finditer(chunk)]
    tags = [match[0] for match in TAG_LIKE.finditer(text)]
    assert all(kept.count(tag) >= tags.count(tag) for tag in tags)
    if len(chunks) > 1:
        assert all(any(c.isalnum() for c in TAG_LIKE.sub("", chunk)) for chunk in chunks)


SIGNS = [
    "...",
    "!!! ???",
    "***",
    "\u2014 \u2014",
    "\u2026\u2026",
    "\U0001f600",
    "\u3002",
    "\n\n",
    "\n",
    " ",
    "<|foo|>",
    "<|sfx:cough|>",
]


@pytest.mark.parametrize("seed", range(8))
def test_no_chunk_is_punctuation_only(seed):
    """Text without letters or digits is not spoken, so such a chunk would end the speech of the whole text."""
    rng = random.Random(seed)
    for _ in range(60):
        pieces = rng.choices(
            [*SIGNS, "<|prosody:pause|>", "<emotion:awe>", "Hi there", "7", "\u4f60\u597d"], k=rng.randint(2, 30)
        )
        text = "Go" + "".join(piece + rng.choice(["", " ", "\n"]) for piece in pieces)
        for chunk in split_text(text, rng.choice([0.01, 0.2, 1.0, 3.0])):
            assert any(character.isalnum() for character in TAG_LIKE.sub("", chunk)), (text, chunk)


def test_combining_marks_stay_with_their_letters():
    for text in ("e\u0301" * 60, "कि" * 60, "क्\u200dष" * 60):
        chunks = split_text(text, 0.5)
        assert len(chunks) > 1 and "".join(chunks) == text
        assert all(chunk[0] in "eक" for chunk in chunks)


def test_words_without_blanks_are_cut_at_their_signs():
    words = [word * 2 for word in ("alder", "birch", "cedar", "elm", "hazel", "larch", "maple", "oak")]
    for sign in "/-_|\u00b7":
        chunks = split_text(sign.join(words), 2.0)
        assert len(chunks) > 2 and "".join(chunks) == sign.join(words)
        assert all(part in words for chunk in chunks for part in chunk.split(sign) if part)


def test_vowels_and_joined_letters_stay_together():
    for text in (
        "\u0e40\u0e1b\u0e47\u0e19\u0e2d\u0e30\u0e44\u0e23\u0e08\u0e30\u0e44\u0e1b" * 20,
        "\u1780\u17d2\u1793\u17bb\u1784" * 20,
    ):
        for most in range(1, 12):
            chunks = split_text(text, most / 15)
            assert "".join(chunks) == text and len(chunks) > 4
            assert not any(chunk[0] in "\u0e30\u0e47\u17d2" for chunk in chunks)
            assert not any(chunk[-1] in "\u0e40\u0e44\u17d2" for chunk in chunks)


def test_long_text_is_split_quickly():
    """Quadratic work on a book's chapter would make this test hang rather than fail."""
    text = "<|emotion:awe|>A sentence, of a kind. " * 8000 + "我" * 20_000
    assert without_space("".join(split_text(text, 30))).count("我") == 20_000


def test_seconds_are_estimated_by_script():
    assert estimate_seconds("a" * 150) == pytest.approx(10)
    assert (
        estimate_seconds("我" * 45) == estimate_seconds("が" * 45) == estimate_seconds("한" * 45) == pytest.approx(10)
    )
    assert estimate_seconds("<|emotion:awe|><|made up|>a" + "<emotion:awe>" * 9) == pytest.approx(1 / 15)
    assert estimate_seconds("<|prosody:pause|>" * 2) == pytest.approx(1.1)
    assert estimate_seconds("1999") > estimate_seconds("nine")
    assert estimate_seconds("") == 0
    assert estimate_frames("a" * 150) == 250
    assert estimate_frames("") == estimate_frames("Hi") == 25
