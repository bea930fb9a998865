"""Common ways to write scripts, understood or warned of. Prose is neither."""

import json
import pathlib

import pytest
from higgs_tts.engine import HiggsError, read_book_text, read_cues, read_dialogue

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


MARKED_NAMES = [  # vowel signs, accents of their own, joiners
    ("\u0930\u093e\u092e", "\u0938\u0940\u0924\u093e"),
    ("\u0e41\u0e21\u0e48", "\u0e2a\u0e21\u0e0a\u0e32\u0e22"),
    ("\u0bb0\u0bbe\u0bae\u0bcd", "\u0b9a\u0bc0\u0ba4\u0bbe"),
    ("J\u0304ose", "M\u0304ia"),
    ("\u0639\u0644\u06cc\u200c\u0631\u0636\u0627", "\u0633\u0627\u0631\u0627"),
]


@pytest.mark.parametrize(("anna", "ben"), MARKED_NAMES)
@pytest.mark.parametrize("form", ["{}: ", "[{}] ", "{}\n", "**{}:** "])
def test_names_may_have_combining_marks(anna, ben, form):
    script = "\n\n".join(
        form.format(name) + text for name, text in ((anna, "a."), (ben, "b."), (anna, "c."), (ben, "d."))
    )
    dialogue = read_dialogue(f"{anna} = amber\n{ben} = oliver\n\n{script}")
    assert dialogue.head == {anna: "amber", ben: "oliver"}
    assert turns_of(dialogue.turns) == [[anna, "a."], [ben, "b."], [anna, "c."], [ben, "d."]]
    assert not [warning for warning in dialogue.warnings if "Read as turns" not in warning]
    sheet = read_cues(srt_of([f"{anna}: a.", f"{ben}: b.", f"{anna}: c.", f"{ben}: d."]))
    assert sheet.speakers == [anna, ben]


def test_a_name_is_the_same_with_composed_letters():
    dialogue = read_dialogue("Jose\u0301: a.\nAnn: b.\nJos\u00e9: c.\nAnn: d.")
    assert [turn.speaker for turn in dialogue.turns] == ["Jos\u00e9", "Ann", "Jos\u00e9", "Ann"]


def test_invisible_characters_hide_no_names_and_comments():
    head = "\ufeff# Nobody says this.\n\u200eAnna = amber\nBen = oliver\n"
    dialogue = read_dialogue(f"{head}\u202bAnna\u200f: a.\n\u200bBen: b.\nA\u00adnna: c.")
    assert turns_of(dialogue.turns) == [["Anna", "a."], ["Ben", "b."], ["Anna", "c."]] and not dialogue.warnings
    sheet = read_cues(srt_of(["\u202bAnna: a.", "\u200bBen: b.", "\u200e- Anna: c.", "Ben: d."]))
    assert [turns_of(cue.turns)[0] for cue in sheet.cues] == [
        ["Anna", "a."],
        ["Ben", "b."],
        ["Anna", "c."],
        ["Ben", "d."],
    ]


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


MESSY = "Grandma Lou: Are you all right?\nBen: Yes.\n{}\nGrandma Lou: Good.\nBen: Bye."
LOOSE = {
    "a dash": ("Ben - It's fine.", "It's fine."),
    "a dash without blanks": ("Ben—It's fine.", "It's fine."),
    "a short dash": ("Ben – It's fine.", "It's fine."),
    "a name in capitals above": ("BEN\nIt's fine.", "It's fine."),
    "a name in capitals and a blank line above": ("BEN\n\nIt's fine.", "It's fine."),
    "a name above": ("Ben\nIt's fine.", "It's fine."),
    "a name in capitals with a manner": ("BEN (quickly)\nIt's fine.", "<|prosody:speed_fast|>It's fine."),
    "a name in capitals and a full stop": ("BEN. It's fine.", "It's fine."),
    "a tab": ("Ben\tIt's fine.", "It's fine."),
    "a manner without a colon": ("Ben (whispering) It's fine.", "<|style:whispering|>It's fine."),
    "a manner and a dash": ("Ben (whispering) - It's fine.", "<|style:whispering|>It's fine."),
    "parentheses": ("(Ben) It's fine.", "It's fine."),
    "braces": ("{Ben} It's fine.", "It's fine."),
    "bold without a colon": ("**Ben** It's fine.", "It's fine."),
    "quotation marks without a colon": ("“Ben” It's fine.", "It's fine."),
    "an at sign": ("@Ben It's fine.", "It's fine."),
    "a time": ("[00:12] Ben: It's fine.", "It's fine."),
    "a time without brackets": ("1:02:12 - Ben: It's fine.", "It's fine."),
    "a bar": ("Ben | It's fine.", "It's fine."),
    "an arrow": ("Ben> It's fine.", "It's fine."),
    "a semicolon": ("Ben; It's fine.", "It's fine."),
    "an equals sign": ("Ben = It's fine.", "It's fine."),
}


@pytest.mark.parametrize(("written", "text"), LOOSE.values(), ids=LOOSE)
@pytest.mark.parametrize("head", ["", "Ben = jack\nGrandma Lou = ruth\n\n"])
def test_other_signs_begin_turns_of_those_who_speak_elsewhere(written, text, head):
    dialogue = read_dialogue(head + MESSY.format(written))
    assert turns_of(dialogue.turns)[1:4] == [["Ben", "Yes."], ["Ben", text], ["Grandma Lou", "Good."]]
    (told,) = dialogue.warnings
    assert told.startswith("Read as turns, though they have no colon: ") and repr(written.split("\n")[0]) in told


@pytest.mark.parametrize(
    "written",
    [
        "Ben : It's fine.",
        "[Ben]\nIt's fine.",
        "[Ben]: It's fine.",
        "**Ben:** It's fine.",
        "BEN: It's fine.",
        "Ben:\tIt's fine.",
        "- Ben: It's fine.",
        "<Ben> It's fine.",
    ],
)
def test_usual_forms_are_mixed_without_a_warning(written):
    dialogue = read_dialogue(MESSY.format(written))
    assert turns_of(dialogue.turns)[2] == ["Ben", "It's fine."] and not dialogue.warnings


@pytest.mark.parametrize(
    "written",
    [
        "Ben - a tall man - left.",
        "Ben - Lou's brother - left.",
        "Ben -it's fine.",
        "Ben (his hat in hand) came back.",
        "Ben. That was his name.",
        "1. Ben. It's fine.",
        "Ben, softly: It's fine.",
        "Ben --It's fine.",
        "Ben • It's fine.",
        "Ben / It's fine.",
        "Ben—the tall one—left.",
    ],
)
def test_what_may_be_text_is_spoken_and_named(written):
    """The right reading of some of these is a turn, so the line is named."""
    dialogue = read_dialogue(MESSY.format(written))
    assert turns_of(dialogue.turns)[1] == ["Ben", f"Yes.\n{written}"]
    (told,) = dialogue.warnings
    assert told == f"{written!r} was read as text, because it does not start with a name and a colon."


@pytest.mark.parametrize(
    "text",
    [
        "Ben - a tall man - left.\nIt was late.\nBen - It was he - came back.\nNobody spoke.\nHe slept.",
        "BEN\nHe read it twice.\n\nBEN\n",
        "He came in. (He was tired.)\n(Nobody saw him.)",
        "(whispering) Come here.\n\n[Applause]\n\n*He leaves.*",
        "Ben\tHe left.\nIt was late.\nNobody came.",
        "London (England) It rained.\nLondon; It rained.\nIt rained on.",
    ],
)
def test_texts_without_speakers_stay_as_they_are(text):
    assert turns_of(read_dialogue(text).turns) == [["", text.strip()]]


DIRECTIONS = {
    "a line": ("(He leaves.)", ["(He leaves.)"]),
    "square brackets": ("[He leaves.]", ["[He leaves.]"]),
    "a sound": ("[door slams]", ["[door slams]"]),
    "a word that might be a name": ("[Applause]", ["[Applause]"]),
    "several lines": ("(He leaves,\nslamming\nthe door.)", ["(He leaves, slamming the door.)"]),
    "two in a line": ("(He leaves.) (Silence.)", ["(He leaves.) (Silence.)"]),
    "italics": ("*(He leaves.)*", ["*(He leaves.)*"]),
    "italics without brackets": ("_He leaves._", ["_He leaves._"]),
    "blank lines around": ("\n(He leaves.)\n", ["(He leaves.)"]),
    "wide brackets": ("（他走了。）", ["（他走了。）"]),
    "black brackets": ("【他走了】", ["【他走了】"]),
    "parentheses within": ("(He (Ben) leaves.)", ["(He (Ben) leaves.)"]),
    "a scene's heading": ("INT. KITCHEN - NIGHT", ["INT. KITCHEN - NIGHT"]),
    "a cut": ("CUT TO:", ["CUT TO:"]),
    "a name alone": ("(Ben)", []),
    "a turn's only words": ("Ben: (nods)", ["(nods)"]),
}


@pytest.mark.parametrize(("written", "told"), DIRECTIONS.values(), ids=DIRECTIONS)
def test_directions_on_lines_of_their_own_are_left_out_and_named(written, told):
    dialogue = read_dialogue(MESSY.format(written))
    assert [text for _, text in turns_of(dialogue.turns)] == ["Are you all right?", "Yes.", "Good.", "Bye."]
    found = [warning for warning in dialogue.warnings if warning.startswith("Stage directions were not spoken: ")]
    assert len(found) == bool(told) and all(one in found[0] for one in told)


INLINE = {
    "a manner": ("(whispering) Yes.", "<|style:whispering|>Yes.", ""),
    "a manner in square brackets": ("[whispering] Yes.", "<|style:whispering|>Yes.", ""),
    "a manner before a small letter": ("(angrily) yes.", "<|emotion:anger|>yes.", ""),
    "a sound": ("(laughs) Yes.", "<|sfx:laughter|>Yes.", ""),
    "a sound between stars": ("*sighs* Yes.", "<|sfx:sigh|>Yes.", ""),
    "a sound alone": ("(coughs)", "<|sfx:cough|>", ""),
    "on the next line": ("\n(whispering)\nYes.", "<|style:whispering|>Yes.", ""),
    "a screenplay's remark": ("(cont'd) Yes.", "Yes.", ""),
    "a manner without a tag": ("(softly) Yes.", "Yes.", "(softly)"),
    "to whom": ("(to Lou) Yes.", "Yes.", "(to Lou)"),
    "an action": ("(He nods.) Yes.", "Yes.", "(He nods.)"),
    "an action in square brackets": ("[nods] Yes.", "Yes.", "[nods]"),
    "wide parentheses": ("（他点头）好。", "好。", "（他点头）"),
    "an action behind": ("Yes. (He leaves.)", "Yes.", "(He leaves.)"),
    "an action between": ("Yes. (Ben leaves.) Good.", "Yes.  Good.", "(Ben leaves.)"),
    "a sound with more words": ("*coughs loudly* Yes.", "<|sfx:cough|>Yes.", "*coughs loudly*"),
    "words that are like a manner": ("(Fast food) is bad.", "<|prosody:speed_fast|>is bad.", "(Fast food)"),
    "a manner of two words": ("(very fast) Yes.", "<|prosody:speed_very_fast|>Yes.", ""),
    "a pause stays": ("[pause 1] Yes.", "[pause 1] Yes.", ""),
    "a thought stays": ("(I think) yes.", "(I think) yes.", ""),
    "a sentence stays": ("(You know me.) Yes.", "(You know me.) Yes.", ""),
    "a remark inside stays": ("Yes (he knows it).", "Yes (he knows it).", ""),
    "emphasis stays": ("*Never* do that.", "*Never* do that.", ""),
}


@pytest.mark.parametrize(("written", "text", "told"), INLINE.values(), ids=INLINE)
def test_directions_in_a_turn_become_tags_or_are_left_out_and_named(written, text, told):
    dialogue = read_dialogue(MESSY.format(f"Ben: {written}"))
    assert turns_of(dialogue.turns)[2] == ["Ben", text]
    if told:
        (warning,) = dialogue.warnings
        assert warning.startswith(f"Stage directions were not spoken: {told}. ")
    else:
        assert not dialogue.warnings


def test_the_messy_script_is_understood_and_named():
    dialogue = read_dialogue(MESSY.format("Ben - It's fine.\nBEN\nI know.\n(He leaves.)"))
    assert turns_of(dialogue.turns)[2:4] == [["Ben", "It's fine."], ["Ben", "I know."]]
    assert dialogue.warnings == (
        "Read as turns, though they have no colon: \"Ben - It's fine.\" and 'BEN'. If one is wrong, begin it with "
        "another word.",
        "Stage directions were not spoken: (He leaves.). To have them spoken, write them without brackets or "
        "asterisks.",
    )


def test_a_name_with_brackets_and_no_voice_is_still_refused():
    with pytest.raises(HiggsError, match="Tom has no voice"):
        read_dialogue("Anna = amber\n\n[Anna]\nHi.\n[Tom]\nHello.\n[Anna]\nBye.\n[Tom]\nBye.")


def test_cues_know_a_name_in_capitals_above_and_brackets_over_two_lines():
    lines = ["BEN: Hi.", "LOU: Hello.", "BEN\nI know.", "LOU: Ben!", "(door creaks\nslowly)", "Ben - Run!"]
    sheet = read_cues(srt_of(lines))
    turns = [turn for cue in sheet.cues for turn in turns_of(cue.turns)]
    assert turns[2:] == [["BEN", "I know."], ["LOU", "Ben!"], ["LOU", "Ben - Run!"]]
    assert [told.partition(":")[0] for told in sheet.warnings] == [
        "'Ben - Run!' was read as text, because it does not start with a name and a colon.",
        "Read as turns, though they have no colon",
        "Sound descriptions were not spoken",
    ]
