"""Figures, units, signs and capitals in words for the embedded model. Times, subtitles and doubts keep the text."""

import functools
import io
import json
import pathlib

import pytest
from higgs_tts.engine import (
    EMBEDDED,
    Engine,
    EngineConfig,
    SamplingParams,
    read_dialogue,
    read_pronunciations,
    text_check,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.prompt.card import CARD, read_card
from higgs_tts.engine.prompt.chunking import estimate_seconds
from higgs_tts.engine.prompt.plan import plan
from higgs_tts.engine.prompt.script import Script, Turn
from higgs_tts.engine.prompt.spell_out import spell_out
from higgs_tts.engine.words.letters import said_words

FORMS = json.loads((pathlib.Path(__file__).parent / "data" / "spelled_out.json").read_text(encoding="utf-8"))
CASES = [(kind, written, said) for kind, forms in FORMS.items() for written, said in forms.items()]
PLAIN = (
    "It's the cat. I said: \u201cNo, Mr. Brown\u201d \u2014 and left \u2026 (with Mrs. Green); I'm not sure?\n\nPlan B."
)


def said(text):
    return spell_out(text, "en").text


def test_each_kind_has_at_least_eight_forms():
    assert len(FORMS) >= 15 and all(len(forms) >= 8 for forms in FORMS.values())


@pytest.mark.parametrize(("kind", "written", "words"), CASES, ids=[f"{kind}: {written}" for kind, written, _ in CASES])
def test_forms_are_said_as_a_reader_says_them(kind, written, words):
    assert said(written) == words
    assert said(words) == words, "what is said already stays"


@pytest.mark.parametrize(
    "text", [PLAIN, "", " ", "Hello there.", "caf\u00e9 na\u00efve \u4f60\u597d \u041f\u0440\u0438\u0432\u0435\u0442"]
)
def test_text_without_such_forms_stays_as_it_is(text):
    assert spell_out(text, "en").respellings == () and said(text) == text


def test_without_a_table_nothing_changes():
    assert spell_out("NASA, 06:32", "").text == "NASA, 06:32" == spell_out("NASA, 06:32", "fr").text


def test_tags_and_pauses_stay():
    text = "<|prosody:pause|>THE END [pause 1.5] <|emotion:awe|>5 [PAUSE 2s] <prosody:speed_slow>6"
    assert said(text) == ("<|prosody:pause|>the end [pause 1.5] <|emotion:awe|>five [PAUSE 2s] <prosody:speed_slow>six")


def test_pronunciations_come_first():
    listed = read_pronunciations("06:32 = oh six thirty-two\nNASA = Nassa")
    assert said(listed.apply("06:32, NASA, 06:33")) == "oh six thirty-two, Nassa, six thirty-three"


def test_places_lead_back_to_the_written_text():
    found = spell_out("At 06:32 THE \ufb01sh ate \U0001f600 5km.", "en")
    parts = [(found.written[one.start : one.stop], one.spelling) for one in found.respellings]
    others = [("THE", "the"), ("\ufb01sh", "fish"), (" \U0001f600", ""), ("5km", "five kilometers")]
    assert parts == [("06:32", "six thirty-two"), *others]
    start = found.text.index("five")
    assert found.written[slice(*found.as_written(start, start + len("five kilometers")))] == "5km"
    assert said_words(["At", "06:32", "THE", "5km."], found) == ["At", "six thirty-two", "the", "five kilometers."]


def test_chunks_are_as_long_as_what_is_said_and_no_cut_is_inside():
    text = " ".join(["Call 555-123-4567 at 12:45, for $1,250.75."] * 6)
    params, limit = SamplingParams(), 12.0
    read_as = functools.partial(spell_out, language="en")
    planned = plan([Turn("", text)], params, False, lambda script, speaker: (limit, limit), read_as=read_as)
    lengths = [estimate_seconds(said(chunk.text)) for chunk in planned.chunks]
    assert len(lengths) > 2 and max(lengths) <= limit
    assert " ".join(chunk.text for chunk in planned.chunks) == text
    assert Script(text, (), (), spell_out(text, "en").respellings).spoken_text == said(text)


def test_an_unknown_table_is_noted(tmp_path):
    (tmp_path / CARD).write_text(json.dumps({"spell_out": "xx"}))
    (note,) = (card := read_card(tmp_path)).notes
    assert "spell_out" in note and card.spell_out == ""
    (tmp_path / CARD).write_text(json.dumps({"spell_out": "en"}))
    assert read_card(tmp_path).spell_out == "en" == read_card(EMBEDDED).spell_out


def test_hints_leave_names_cues_and_comments_alone():
    check = text_check(EMBEDDED)
    script = "# NASA 5\nANNA: At 5.\n[TOM]\nIt is 6:30."
    assert [one.spelling for one in check.respellings(read_dialogue(script, ["Anna", "Tom"]).said)] == [
        "five",
        "six thirty",
    ]
    assert [one.spelling for one in check.respellings("7\n00:00:01,000 --> 00:00:02,000\nOn 5 May.", True)] == [
        "the fifth of May"
    ]


def test_speech_is_that_of_the_words_and_refers_to_the_text():
    params = SamplingParams(seed=3, max_frames=200, retries=0)
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu")) as engine:
        written, spoken = "At 06:32 he met NASA.", "At six thirty-two he met nasa."
        assert engine.planner.read_as(written) == spoken
        one, other = engine.speak(written, params=params), engine.speak(spoken, params=params)
        assert one.codes.equal(other.codes)
        assert one.said[0].text == written and [word.text for word in engine.words(one)] == written.split()
        assert {word.method for word in engine.words(one)} == {"attention"}


def test_the_terminal_shows_the_text_without_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Engine, "__enter__", lambda self: pytest.fail("the weights are loaded"))
    assert main(["say", "At 06:32, NASA.", "--show-text"]) == 0
    assert capsys.readouterr().out == "At six thirty-two, nasa.\n"
    words, script = tmp_path / "words.txt", tmp_path / "scene.txt"
    words.write_text("nasa = the agency", encoding="utf-8")
    script.write_text("Anna: At 5.\nTom: NASA!", encoding="utf-8")
    assert main(["say", "--script", str(script), "--pronunciations", str(words), "--show-text"]) == 0
    assert capsys.readouterr().out == "Anna: At five.\nTom: the agency!\n"
    assert main(["say", "Hi."]) == 2 and "--out" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_text_on_stdin_is_shown_in_any_encoding(encoding, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Grüße an 2 Köche.".encode(encoding))))
    assert main(["say", "-", "--show-text"]) == 0
    assert capsys.readouterr().out == "Grüße an two Köche.\n"
