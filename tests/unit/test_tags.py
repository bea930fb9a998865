"""Tags left out of a user's text, and the warnings."""

import pytest
from higgs_tts.engine.prompt.tags import (
    TAGS,
    TextGuard,
    after_first_word,
    canonical_tag,
    delivery_slot,
    stage_directions,
)

RESERVED = ["<|tts|>", "<|text|>", "<|audio|>", "<|eoc|>", "<think>", "<thinking>", "[PAD]"]


def clean(text, reserved=(*RESERVED, *TAGS), without_tags=False):
    warnings = []
    return TextGuard(reserved, without_tags, "x/tokenizer.json").clean(text, warnings.append), warnings


@pytest.mark.parametrize(
    ("text", "kept", "told"),
    [
        ("<|emotion:elaton|>Hi", "Hi", ("<|emotion:elaton|>", "<|emotion:elation|>")),
        ("<emotion:elaton>Hi", "Hi", ("<emotion:elaton>", "<|emotion:elation|>")),
        ("Hi <|laughter|> you", "Hi you", ("<|laughter|>", "<|sfx:laughter|>")),
        ("<| emotion: Awe |>Hi", "Hi", ("<| emotion: Awe |>", "<|emotion:awe|>")),
        ("Hi<|style:opera|>", "Hi", ("<|style:opera|>", "singing, shouting, ")),
        ("Hi<|zzzz|>", "Hi", ("<|zzzz|>",)),
        ("Hi <|eoc|>you", "Hi you", ("<|eoc|>", "command")),
        ("Hi<think> you", "Hi you", ("<think>", "command")),
        ("<thinking>Hi", "Hi", ("<thinking>", "command")),
        ("[PAD]Hi", "Hi", ("[PAD]", "command")),
    ],
)  # fmt: skip
def test_unknown_and_reserved_tags_are_left_out_with_a_warning(text, kept, told):
    cleaned, warnings = clean(text)
    assert cleaned == kept and len(warnings) == 1 and all(part in warnings[0] for part in told)


def test_the_longer_of_two_matching_names_is_used():
    cleaned, warnings = clean("[PAD]2 Hi", ["[PAD]", "[PAD]2"])
    assert cleaned == "Hi" and warnings[0].startswith("[PAD]2 ")


def test_text_joined_by_leaving_out_a_tag_is_read_again():
    cleaned, warnings = clean("Hi <|aud<|eoc|>io|>you <th<think>ink>")
    assert cleaned == "Hi you"
    assert [told.split()[0] for told in warnings] == ["<|eoc|>", "<think>", "<|audio|>"]


@pytest.mark.parametrize(
    "text", ["a < b | c > d", "<b>bold</b>", "<http://x>", "[POD]", "1 <|2", "note: this", "<e:f>"]
)
def test_ordinary_text_stays(text):
    assert clean(text) == (text, [])


def test_half_a_surrogate_pair_is_dropped():
    assert clean("Hi\ud83d you") == ("Hi you", [])


def test_known_tags_get_their_full_spelling():
    assert clean(" <emotion:awe>Hi <|sfx:cough>Ugh<|prosody:pause|> ") == (
        "<|emotion:awe|>Hi <|sfx:cough|>Ugh<|prosody:pause|>",
        [],
    )


def test_a_tag_that_the_tokenizer_lacks_is_left_out():
    cleaned, (told,) = clean("<style:singing><style:shouting>Hi", [*RESERVED, "<|style:singing|>"])
    assert cleaned == "<|style:singing|>Hi"
    assert "<style:shouting>" in told and "x/tokenizer.json" in told


def test_tags_are_left_out_for_v2():
    cleaned, warnings = clean("<emotion:awe>Hi <|foo|>", without_tags=True)
    assert cleaned == "Hi"
    assert "<emotion:awe>" in warnings[0] and "Higgs TTS 3" in warnings[0] and "<|foo|>" in warnings[1]


def test_speech_needs_a_letter_a_digit_or_an_effect():
    guard = TextGuard([*RESERVED, *TAGS], False, "x")
    silent = (
        "",
        "...",
        "!? \u2014",
        "\U0001f600",
        "<|emotion:awe|> !",
        "<|prosody:pause|>",
        "<|emotion:awe|><|style:singing|>",
    )
    assert not any(map(guard.speakable, silent))
    assert all(
        map(guard.speakable, ("a", "7", "\u597d!", "<|sfx:cough|>", "<|emotion:awe|>Oh", "... <|sfx:sigh|> ..."))
    )
    assert [guard.has_text(text) for text in ("", "<|emotion:awe|> ", "...", "<|emotion:awe|>!")] == [
        False,
        False,
        True,
        True,
    ]


def test_the_pieces_of_a_split_join_to_the_text():
    guard = TextGuard([*RESERVED, *TAGS], False, "x")
    text = "<|emotion:awe|><|style:singing|>La <|prosody:pause|>la"
    pieces = guard.split(text)
    assert "".join(pieces) == text
    assert [guard.is_tag(piece) for piece in pieces] == [True, True, False, True, False]


def test_the_tags_equal_the_published_ones():
    assert len(TAGS) == len(set(TAGS)) == 43
    assert (TAGS[0], TAGS[-1]) == ("<|emotion:elation|>", "<|sfx:sneeze|>")


def test_tags_have_a_canonical_spelling_and_a_slot():
    assert canonical_tag("<emotion:awe>") == canonical_tag("<|emotion:awe>") == "<|emotion:awe|>"
    assert canonical_tag("<|emotion:Awe|>") is None
    slots = {tag: delivery_slot(tag) for tag in TAGS}
    assert {slot for slot in slots.values() if slot} == {"emotion", "style", "speed", "pitch", "expressive"}
    assert [tag for tag in TAGS if slots[tag] is None] == ["<|prosody:pause|>", "<|prosody:long_pause|>", *TAGS[-9:]]


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("[laughs]", "<|sfx:laughter|>Haha"),
        ("(giggling softly)", "<|sfx:laughter|>Haha"),
        ("<laugh>", "<|sfx:laughter|>Haha"),
        ("*Sighs*", "<|sfx:sigh|>Ahh"),
        ("[hums]", "<|sfx:humming|>"),
        ("(whispers)", "<|style:whispering|>"),
        ("[shouting]", "<|style:shouting|>"),
        ("( sings )", "<|style:singing|>"),
    ],
)
def test_a_sound_written_as_words_is_a_hint_with_its_tag(written, tag):
    (warning,) = stage_directions(f"Well. {written} Indeed, {written} yes.")
    assert f'"{written}" is read aloud' in warning and tag in warning
    assert canonical_tag(tag[: tag.index(">") + 1])


@pytest.mark.parametrize(
    "text", ["He laughs.", "(human)", "[singer]", "(he laughed)", "2 * sigh", "<|sfx:laughter|>Haha"]
)
def test_ordinary_words_give_no_hint(text):
    assert stage_directions(text) == []


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("<|emotion:sadness|>This is it.", "This <|emotion:sadness|>is it."),
        ("<|emotion:sadness|> <|style:whispering|> This is it.", "<|style:whispering|>This <|emotion:sadness|>is it."),
        ("This <|emotion:sadness|>is it.", "This <|emotion:sadness|>is it."),
        ("<|style:whispering|>This is it.", "<|style:whispering|>This is it."),
        ("<|emotion:sadness|>Yes.", "<|emotion:sadness|>Yes."),
        ("<|emotion:sadness|><|sfx:sigh|>Ahh, no.", "<|sfx:sigh|>Ahh, <|emotion:sadness|>no."),
        ("<|emotion:awe|>Oh <|emotion:anger|>no.", "<|emotion:awe|>Oh <|emotion:anger|>no."),
        ("<|emotion:anger|>Stop! Please go.", "<|emotion:anger|>Stop! Please go."),
        ("<|emotion:anger|>\u201c Hello there", "<|emotion:anger|>\u201c Hello there"),
        ("<|emotion:awe|>\u4f60\u597d\u3002", "<|emotion:awe|>\u4f60\u597d\u3002"),
    ],
)
def test_a_leading_emotion_is_moved_behind_the_first_word(text, behind):
    assert after_first_word(text) == behind
