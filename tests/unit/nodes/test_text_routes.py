"""The page's feedback on a text while it is written."""

from __future__ import annotations

import pytest
from higgs_tts.engine import EMBEDDED, EMBEDDED_NAME, Engine, EngineConfig, SamplingParams, read_dialogue
from higgs_tts.engine.tools.tiny import write_tiny

V2 = "download: Higgs Audio v2 (3B)"
V3 = "download: Higgs TTS 3 (4B)"


@pytest.fixture
def ask(server_routes):
    return server_routes


@pytest.fixture
def look(ask):
    """look(text, kind="text", model=..., **settings) -> the answer to the page."""

    def asked(text, kind="text", model=EMBEDDED_NAME, **settings):
        answer = ask("text", {"kind": kind, "text": text, "model": model, "settings": settings})
        assert answer.status == 200, answer.data
        return answer.data

    return asked


def groups(ask, model):
    return {group["name"]: dict(group["tags"]) for group in ask("tags", model=model).data}


def test_the_menu_lists_the_family_s_tags_and_those_without_effect(ask, tmp_path):
    every = groups(ask, V3)
    assert list(every) == ["emotion", "style", "prosody", "sfx", "pause"]
    assert sum(map(len, every.values())) == 43 + 2 and not any(
        why for group in every.values() for why in group.values()
    )
    assert groups(ask, V2) == {"pause": {"[pause]": "", "[pause 1.5]": ""}}
    embedded = groups(ask, EMBEDDED_NAME)
    assert embedded["prosody"]["<|prosody:speed_fast|>"] == "" == embedded["pause"]["[pause]"]
    assert "has not learned <|emotion:awe|>" in embedded["emotion"]["<|emotion:awe|>"]
    write_tiny(tmp_path / "models" / "higgs_tts" / "older", "v2")
    assert list(groups(ask, "older")) == ["pause"]
    assert groups(ask, "not here") == every


def test_hints_carry_places_and_equal_the_info_output(look):
    text = "🙂 Hi <|emotion:hapy|> there [laughs], <sfx:laughter> and [pause soon]."
    told = look(text)
    units = text.encode("utf-16-le")
    marked = [units[2 * hint["start"] : 2 * hint["stop"]].decode("utf-16-le") for hint in told["hints"]]
    assert marked == ["<|emotion:hapy|>", "[laughs]", "<sfx:laughter>", "[pause soon]"]
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu")) as engine:
        warnings = engine.speak(text, params=SamplingParams(max_frames=2, retries=0)).warnings
    for hint, part in zip(told["hints"], ["hapy", "laughs", "laughter", "soon"], strict=True):
        assert any(part in warning and part in hint["says"] for warning in warnings), hint
    assert {told["hints"][at]["says"] for at in (0, 1, 3)} <= set(warnings)


def test_only_tags_that_the_model_learned_are_suggested(look):
    for text, says in (("Ha [laughs]", "Write Haha instead."), ("<b>Ha</b>", "SSML and HTML tags are not supported")):
        hints = look(text)["hints"]
        assert hints and all(says in hint["says"] and "<|" not in hint["says"] for hint in hints), hints


def test_foreign_text_is_noted_and_sound_hints_need_a_model_with_tags(look):
    assert "speaks only English" in look("Der Hund und die Katze sind nicht im Haus.")["notes"][0]
    assert look("Hello there.")["notes"] == ()
    told = look("<|emotion:awe|> Ha [laughs]", model=V2)
    (hint,) = told["hints"]
    assert "v2 has no control tags" in hint["says"]


def test_the_estimated_length_includes_all_pauses(look):
    one = look("The train leaves at half past seven, and I am on it.")["seconds"]
    assert 2 < one < 6
    paused = look("The train leaves at half past seven, and I am on it. [pause 4]")["seconds"]
    assert paused == pytest.approx(one + 4)
    paragraphs = "One two three four five six.\n\nOne two three four five six."
    apart = look(paragraphs, paragraph_gap=2.0)["seconds"] - look(paragraphs)["seconds"]
    assert apart == pytest.approx(2, abs=0.2)
    assert look("")["seconds"] == look(" [pause] ")["seconds"] == 0
    script = "Anna: The train leaves at half past seven.\nTom: It left.\nAnna: No.\nTom: Oh."
    apart = look(script, "script", turn_gap=1.0)["seconds"] - look(script, "script", turn_gap=0.0)["seconds"]
    assert apart == pytest.approx(3)
    sheet = "id,text\na,Welcome to my shop!\nb,Goodbye now."
    assert look(sheet, "lines", takes=3)["seconds"] == pytest.approx(3 * look(sheet, "lines")["seconds"])
    assert look('id,text\na,"Welc', "lines")["seconds"] is None, "it is being written"
    assert look("1\n00:00:01,000 --> 00:00:04,500\nHi.", "srt")["seconds"] == 4.5
    assert look("film.srt", "srt")["seconds"] is None


def test_names_come_from_the_script_and_the_voices(look, library):
    names = look("Anna: Hi.\nTom: Hello.\n# Bob: no\n", "script")["names"]
    assert names[:2] == ["Anna", "Tom"] and "Bob" not in names
    assert {"a", "b", "d", "oliver"} <= set(names) and "team/c" not in names
    assert look("Zoe = oliver\nZoe: Hi.", "script")["names"][0] == "Zoe"
    assert look("1\n00:00:01,000 --> 00:00:02,000\nMia: Hi.", "srt")["names"][0] == "Mia"
    assert look("Anna: Hi.")["names"] == []
    assert look("# <|emotion:nope|>\nAnna: Hi. [laughs]", "script")["hints"][0]["start"] == 29


@pytest.mark.parametrize(
    "body, told",
    [
        ({"kind": "poem", "text": "x"}, "must be one of"),
        ({"kind": 5, "text": "x"}, "must be strings"),
        ({"kind": "text", "text": None}, "must be strings"),
        ({"kind": "text", "text": "x" * 200_001}, "200,000"),
        ({"kind": "text", "text": "x", "settings": {"turn_gap": "1"}}, "must be numbers"),
        ({"kind": "text", "text": "x", "settings": [1]}, "must be numbers"),
        ({"kind": "text", "text": "x", "settings": {"turn_gap": -1}}, "turn_gap"),
        ({"kind": "text", "text": "x", "settings": {"turn_gap": 10**400}}, "must be numbers"),
        ({"kind": "text", "text": "x", "settings": {"takes": 10**400}}, "must be numbers"),
        ({"kind": "text", "text": "x", "settings": {"takes": float("inf")}}, "must be numbers"),
        ({"kind": "text", "text": "x", "settings": {"takes": float("nan")}}, "must be numbers"),
        ({}, "must be one of"),
    ],
)
def test_a_bad_request_gets_a_clear_error(ask, body, told):
    answer = ask("text", body)
    assert answer.status == 400 and told in answer.data["error"]


def test_a_kept_take_is_written_into_the_sheet(ask):
    assert ask("lines", {"lines": "One.\nTwo.", "id": "002", "seed": 5}).data == {
        "lines": "id,text,seed\n001,One.\n002,Two.,5"
    }
    for body in ({"lines": "One.", "id": "009", "seed": 5}, {"lines": "", "id": "a", "seed": 5}):
        answer = ask("lines", body)
        assert answer.status == 400 and answer.data["error"].startswith("Not kept: ")
    for body in ({}, {"lines": "One.", "id": "001", "seed": "5"}, {"lines": "One.", "id": "001", "seed": True}):
        assert ask("lines", body).status == 400
    answer = ask("lines", {"lines": "One.\n" * 200_001, "id": "000001", "seed": 5})
    assert answer.status == 400 and "1,000,000" in answer.data["error"]


def test_what_is_said_is_told_at_its_place_with_its_entry(look):
    text = "🙂 At 06:32, NASA paid #5 and the train ran 5."
    parts = look(text)["said"]
    units = text.encode("utf-16-le")
    marked = [units[2 * one["start"] : 2 * one["stop"]].decode("utf-16-le") for one in parts]
    assert marked == ["06:32", "NASA", "#", "5", "5"]
    assert [one["entry"] for one in parts][:3] == ["06:32 = six thirty-two", "NASA = nasa", ""], "# is a comment"
    assert parts[0]["said"] == "six thirty-two"
    assert look(text, model=V3)["said"] == [] == look('id,text\na,"At 5."', "lines")["said"]
    assert [one["said"] for one in look("ANNA: At 5.\nTOM: No.", "script")["said"]] == ["five"]
    assert [one["said"] for one in look("ANNA: At 5.", "script")["said"]] == ["Anna", "five"], "it is read aloud, too"
    assert look("At $1,234,567.")["seconds"] > look("At one.")["seconds"] + 2


@pytest.fixture(scope="module")
def embedded():
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu")) as engine:
        yield engine


LOU = "Ben: Hi. At 5. [sighs] No.\n<Grandma Lou> Yes, <b>at 7</b>.\n{}\nGrandma Lou: Bye.\nBen: Bye."


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("Ben (whispering): Now.", {"Ben (whispering): "}),
        ("Ben: (whispering) Now.", {"(whispering)"}),
        ("Ben: (He nods.) Now.", {"(He nods.)"}),
        ("Ben: *laughs* Now.", {"*laughs*"}),
        ("Ben: (softly, laughs) Now.", {"(softly, laughs)"}),
        ("Ben: [whispering] Now.", {"[whispering]"}),
        ("BEN\n(whispering)\nNow.", {"(whispering)"}),
        ("(whispering)", {"(whispering)"}),
        ("<Ben> Now.", set()),
        ("Ben - Now. (laughs) Now.", {"(laughs)"}),
        ("# (whispering) at 9", set()),
        ("Ben: Now. (Ben laughs.)", {"(Ben laughs.)"}),
        ("[Ben|loud] Now.", {"[Ben|loud] "}),
    ],
)
def test_the_help_reads_a_script_as_the_run_does(look, embedded, line, marked):
    script = LOU.format(line)
    told = look(script, "script")
    dialogue = read_dialogue(script, knows_tag=embedded.planner.knows_tag)
    quick = SamplingParams(max_frames=2, retries=0, check=False)
    warnings = [*embedded.speak_turns(dialogue.turns, params=quick).warnings, *dialogue.warnings]
    assert {script[hint["start"] : hint["stop"]] for hint in told["hints"]} == {"[sighs]", "<b>", "</b>", *marked}
    text = "\n".join(turn.text for turn in dialogue.turns)
    for hint in told["hints"]:
        part = script[hint["start"] : hint["stop"]]
        assert ("is read aloud" in hint["says"]) == (part in text), hint
        assert hint["says"] in warnings or any(part in one for one in warnings) or part == "</b>", hint
    assert [script[one["start"] : one["stop"]].strip(" .") for one in told["said"]] == ["5", "7"]


def test_the_help_knows_the_voices_of_the_folder_as_the_run_does(look, library):
    """One line of a name counts if it has a voice."""
    script = "Oliver: (laughs) Hi.\nHe had a note: (laughs) no."
    marked = [script[hint["start"] : hint["stop"]] for hint in look(script, "script")["hints"]]
    assert marked == ["(laughs)"] * 2
    says = [hint["says"] for hint in look(script, "script")["hints"]]
    assert "was left out for Oliver" in says[0] and "is read aloud" in says[1]
