"""Common ways to write scripts, understood or warned of. Prose is neither."""

import json
import pathlib

import pytest
from higgs_tts.engine import read_book_text, read_cues, read_dialogue

FORMS = json.loads((pathlib.Path(__file__).parent / "data" / "script_forms.json").read_text(encoding="utf-8"))
ONCE = " If that is a mistake, correct the script."


def table(kind):
    return pytest.mark.parametrize("row", FORMS[kind], ids=[row["form"] for row in FORMS[kind]])


def script_of(row):
    return "\n".join(row["script"])


def turns_of(turns):
    return [[turn.speaker, turn.text] for turn in turns]


def test_a_manner_becomes_a_tag_if_the_model_has_one():
    script = "Anna (whispering, scared): Hi.\nTom (slowly): Hello."
    dialogue = read_dialogue(script, knows_tag=lambda tag: "speed" in tag)
    assert turns_of(dialogue.turns) == [["Anna", "Hi."], ["Tom", "<|prosody:speed_slow|>Hello."]]
    assert dialogue.warnings[:2] == (
        '"(whispering)" was left out for Anna: the model has not learned <|style:whispering|>.',
        '"(scared)" was left out for Anna: the model has not learned <|emotion:fear|>.',
    )


def test_the_table_of_forms_is_long_enough():
    assert len(FORMS["understood"]) + len(FORMS["warned"]) >= 80


@table("understood")
def test_script_forms_are_read(row):
    dialogue = read_dialogue(script_of(row))
    assert turns_of(dialogue.turns) == row["turns"]
    assert all(warning.endswith(ONCE) for warning in dialogue.warnings), dialogue.warnings


@table("warned")
def test_doubtful_forms_are_warned_about(row):
    dialogue = read_dialogue(script_of(row))
    assert turns_of(dialogue.turns) == row["turns"]
    (told,) = [warning for warning in dialogue.warnings if not warning.endswith(ONCE) or row["warned"] in warning]
    assert row["warned"] in told


@table("prose")
def test_prose_is_not_read_as_a_script(row):
    dialogue = read_dialogue(script_of(row))
    assert dialogue.speakers == [""] and not dialogue.warnings, dialogue.warnings


@pytest.mark.parametrize(
    "row",
    [row for row in FORMS["understood"] if not set(row["script"]) & {"", "[pause 1]"}],
    ids=lambda row: row["form"],
)
def test_books_find_the_same_speakers(row):
    (chapter,) = read_book_text(script_of(row), "Title", is_script=True).chapters
    assert turns_of(chapter.turns) == row["turns"]


def is_for_cues(row):
    """True if each line becomes a cue. Cues may have sounds in brackets, and another speaker after a hyphen."""
    return len(row["turns"]) == len(row["script"]) and not any(line[0] in "[-" for line in row["script"])


@pytest.mark.parametrize("row", filter(is_for_cues, FORMS["understood"]), ids=lambda row: row["form"])
def test_subtitles_find_the_same_speakers(row):
    times = (f"00:00:{at:02},000 --> 00:00:{at + 1:02},000" for at in range(len(row["script"])))
    cues = read_cues("\n\n".join(f"{time}\n{line}" for time, line in zip(times, row["script"], strict=True))).cues
    assert [turn for cue in cues for turn in turns_of(cue.turns)] == row["turns"]


SAID = [
    ("Listen", "Listen", "Remember"),
    ("Step 1", "Step 2", "Step 3"),
    ("Note", "Note", "Tip"),
    ("Question", "Answer", "Question"),
    ("Warning", "Warning", "Example"),
    ("Day one", "Day two", "Day three"),
    ("Frage", "Antwort", "Hinweis"),
    ("Remarque", "Étape 1", "Étape 2"),
    ("Pregunta", "Respuesta", "Paso 1"),
    ("Вопрос", "Ответ", "Шаг 1"),
    ("LISTEN", "LISTEN", "LOOK"),
]


def srt_of(lines):
    return "\n".join(f"{at}\n00:00:{at:02},000 --> 00:00:{at + 1:02},000\n{line}\n" for at, line in enumerate(lines, 1))


@pytest.mark.parametrize("words", SAID)
def test_words_that_begin_a_sentence_are_no_speakers(words):
    lines = [f"{words[0]}: the mill is burning.", "We have to go.", *(f"{word}: take the road." for word in words[1:])]
    for sheet in (
        read_cues(srt_of(lines)),
        read_cues("Anna = amber.flac\n\n" + srt_of(lines)),
        read_dialogue("\n".join(lines)),
    ):
        assert [one for one in sheet.speakers if one] == []
        assert any(f"{words[0]}" in told and "read as text, not as a speaker" in told for told in sheet.warnings)
    said = [turn.text for cue in read_cues(srt_of(lines)).cues for turn in cue.turns]
    assert said == lines


def test_words_that_begin_a_sentence_may_speak_if_they_have_a_voice():
    lines = ["Listen: the mill is burning.", "Anna: We have to go.", "Listen: take the lower road."]
    sheet = read_cues("Anna = amber.flac\n\n" + srt_of(lines))
    assert [turn.text for cue in sheet.cues for turn in cue.turns] == [lines[0], "We have to go.", lines[2]]
    assert sheet.speakers == ["", "Anna"]
    sheet = read_cues("Anna = amber.flac\nListen = jack\n\n" + srt_of(lines))
    assert sheet.speakers == ["Listen", "Anna"] and not sheet.warnings
    assert read_dialogue("Q: Who?\nA: Me.\nQ: Why?").speakers == ["Q", "A"]
    book = read_book_text("Anna: Hi.\nTom: Hello.\nNote: it rained.\nAnna: Bye.\nTom: Bye.", "T", is_script=True)
    assert book.speakers == ["Anna", "Tom"] and "Note was read as text" in book.warnings[0]
