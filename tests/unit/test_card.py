"""A checkpoint's card: its limits, its warnings, and that a bad one blocks nothing."""

import json

import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, SamplingParams
from higgs_tts.engine.prompt.card import CARD, ModelCard, read_card
from higgs_tts.engine.prompt.tags import TAGS
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.training.export import LEARNED

ENGLISH = "Your computer can speak now."


def card(folder, **held):
    (folder / CARD).write_text(json.dumps(held), encoding="utf-8")
    return read_card(folder)


def test_without_a_card_nothing_is_limited(tmp_path):
    assert read_card(tmp_path) == ModelCard()
    assert ModelCard().warnings("Привет <|emotion:awe|>") == () and ModelCard().describe() == ""


def test_an_unsupported_language_is_a_warning(tmp_path):
    one = card(tmp_path, languages=["en"])
    assert one.warnings(ENGLISH + " 😀 12") == ()
    assert one.warnings("你好，世界。") == ("This checkpoint speaks only English; Chinese text will come out wrong.",)
    two = card(tmp_path, languages=["en-US", "de"])
    assert two.warnings("Wo ist der Bahnhof?") == ()
    (told,) = two.warnings("你好，世界。 Привет, как дела?")
    assert "English and German" in told and "Chinese and Cyrillic" in told


def test_unsupported_tags_are_warned_about_once(tmp_path):
    limited = card(tmp_path, tags=["<|prosody:pause|>", "prosody:speed_fast"])
    assert limited.tags == ("<|prosody:pause|>", "<|prosody:speed_fast|>")
    assert limited.warnings("Hi <|prosody:pause|> you <prosody:speed_fast>there <|no:tag|>") == ()
    (told,) = limited.warnings("<|emotion:awe|>Hi <sfx:cough>Ugh. <|emotion:awe|>Oh.")
    assert "<|emotion:awe|> and <|sfx:cough|>" in told and "<|prosody:pause|> and <|prosody:speed_fast|>" in told
    (told,) = card(tmp_path, tags=[]).warnings("".join(TAGS) + "Hi")
    assert "37 more" in told
    assert len(card(tmp_path, tags=[], languages=["en"]).warnings("<|emotion:awe|>Wo ist der Bahnhof?")) == 2


def test_tags_are_not_read_as_text_of_a_language(tmp_path):
    assert card(tmp_path, languages=["de"]).warnings("<|emotion:the and of to is|>" * 5 + "Ja.") == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "JSON"),
        (b"[1]", "JSON object"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"languages": "en"}', "languages"),
        (b'{"tags": [1]}', "tags"),
        (b'{"tags": ["emotion:happy", "<|prosody:pause|>"]}', "emotion:happy"),
        (b'{"sharpness": 0}', "sharpness must be a number up to 100"),
        (b'{"chunk_seconds": 1%s}' % (b"0" * 400), "chunk_seconds must be a number from 2"),
    ],
)
def test_a_bad_card_is_noted_and_the_model_loads(tmp_path, content, says):
    folder = write_tiny(tmp_path / "v3", "v3")
    (folder / CARD).write_bytes(content)
    card = Engine(EngineConfig(str(folder), device="cpu")).planner.card
    (note,) = card.notes
    assert says in note and str(folder / CARD) in note
    assert card.languages is None
    report = examine(folder)
    assert note in report.notes and not report.problems


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / CARD).write_bytes(b"\xef\xbb\xbf" + json.dumps({"languages": ["en"], "voice": "slt"}).encode())
    assert read_card(tmp_path) == ModelCard(("en",))


def test_the_embedded_checkpoint_has_a_card():
    held = read_card(EMBEDDED)
    assert held.languages == ("en",) and held.sharpness == 3.2 and not held.notes and list(held.tags) == LEARNED
    assert len(held.tags) == 6 and all("pause" in tag or "speed" in tag for tag in held.tags)
    report = examine(EMBEDDED)
    assert "English" in report.speaks and "6 of 43" in report.speaks and report.speaks in report.as_text()
    assert not report.notes


def test_speech_carries_each_warning_once_per_call(tmp_path):
    """For the whole text, however many chunks it has."""
    folder = write_tiny(tmp_path / "v3", "v3")
    (folder / CARD).write_text(json.dumps({"languages": ["en"], "tags": []}), encoding="utf-8")
    text = "Wo ist der Bahnhof? Das ist nicht hier. <|emotion:awe|>Oh, wie schön ist es. <|emotion:fear|>Und nun?"
    with Engine(EngineConfig(model=str(folder), device="cpu", runner="eager", context=512)) as engine:
        speech = engine.speak(text, params=SamplingParams(max_frames=8, chunk_seconds=1.0))
        assert speech.chunks > 2
        assert [warning.split()[2] for warning in speech.warnings if "checkpoint" in warning] == ["speaks", "has"]
        plain = engine.speak(ENGLISH, params=SamplingParams(max_frames=8))
        assert not [warning for warning in plain.warnings if "checkpoint" in warning]
