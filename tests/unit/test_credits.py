"""Spoken credits: chapters like others, in the book's language, of what is known of the book."""

from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    BookSettings,
    Engine,
    EngineConfig,
    HiggsError,
    SamplingParams,
    Voice,
    narrate,
    read_book_text,
    with_details,
)
from higgs_tts.engine.book import chapters as planning

from .test_book import Robot

FACTS = "author = Jane Austen\nnarrator = Anna"
TEXT = "# Emma\n\n## One\n\nIt begins.\n\n## Two\n\nIt ends here."
VOICE = {"": Voice(torch.zeros(50, 8).long(), "A.")}


def credits_of(book):
    return [(one.title, *(turn.text for turn in one.turns)) for one in book.chapters if one.is_credits]


def test_they_are_the_first_and_the_last_chapter():
    book = read_book_text(TEXT, "Book")
    assert credits_of(with_details(book, FACTS)) == [], "off by default"
    made = with_details(book, FACTS, credits=True)
    said = "Emma. Written by Jane Austen. Narrated by Anna."
    assert [one.title for one in made.chapters] == ["Opening Credits", "One", "Two", "Closing Credits"]
    assert credits_of(made) == [("Opening Credits", said), ("Closing Credits", f"The end. {said}")]
    assert (made.details.narrator, made.chapters[1:3]) == ("Anna", book.chapters)


def test_their_words_can_be_given_or_left_out():
    book = read_book_text(TEXT, "Book")
    given = with_details(book, "opening = Emma: a novel\nclosing = That was Emma.")
    assert [one[1] for one in credits_of(given)] == ["Emma: a novel", "That was Emma."], (
        "whoever writes them wants them"
    )
    (opening,) = credits_of(with_details(book, f"{FACTS}\nclosing =", credits=True))
    assert opening[0] == "Opening Credits"
    (closing,) = credits_of(with_details(book, f"{FACTS}\nopening = ...", credits=True))
    assert closing[0] == "Closing Credits"


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ("", "the credits need the author and the narrator. Add lines such as author = "),
        ("author = Ann", "the credits need the narrator. Add lines such as author = "),
        ("narrator = Ann\nopening = Emma.", "the credits need the author. Add lines"),
    ],
)
def test_what_is_not_known_is_named(known, says):
    with pytest.raises(HiggsError) as told:
        with_details(read_book_text(TEXT, "Book"), known, credits=True)
    assert str(told.value).startswith(says)
    assert str(told.value).endswith("as opening = ... and closing = ...")


@pytest.mark.parametrize(
    ("language", "text", "opening", "closing"),
    [
        ("", "Das ist nicht der Hund, und ich habe ihn auch nicht mit dir gesehen.",
         "Geschrieben von Jane Austen. Gelesen von Anna.", "Ende."),
        ("", "他们沿着河边慢慢地走，谁也没有说话。", "作者：Jane Austen。朗读：Anna。", "全书完。"),
        ("", "わたしはまいにちほんをよみます。", "著者、Jane Austen。朗読、Anna。", "おわり。"),
        ("", "Они медленно шли вдоль реки и молчали.", "Автор: Jane Austen. Читает Anna.", "Конец."),
        ("", "우리는 강을 따라 천천히 걸었습니다.", "지은이 Jane Austen. 낭독 Anna.", "끝."),
        ("pt-BR", "12", "Escrito por Jane Austen. Narrado por Anna.", "Fim."),
        ("zh-Hant", "12", "作者：Jane Austen。朗讀：Anna。", "全書完。"),
        ("fi", "12", "Written by Jane Austen. Narrated by Anna.", "The end."),
        ("en_GB", "Das ist nicht der Hund, und ich habe ihn auch nicht mit dir gesehen.",
         "Written by Jane Austen. Narrated by Anna.", "The end."),
    ],
)  # fmt: skip
def test_they_are_in_the_book_s_language(language, text, opening, closing):
    book = with_details(read_book_text(f"{text}\n\n{text}", "Emma"), f"{FACTS}\nlanguage = {language}", credits=True)
    (_, first), (_, last) = credits_of(book)
    assert first.endswith(opening) and "Emma" in first and last == f"{closing} {first}"


def test_no_sentence_ends_twice():
    facts = "title = Who?\nauthor = J. Smith Jr.\nnarrator = Anna"
    (_, said), _ = credits_of(with_details(read_book_text(TEXT, "Book"), facts, credits=True))
    assert said == "Who? Written by J. Smith Jr. Narrated by Anna."


def test_in_a_script_the_narrator_says_them():
    script = "Alice = amber\n\nAlice: Hello.\nBob: Good day."
    first, *_ = with_details(read_book_text(script, "Talk", True), FACTS, credits=True).chapters
    assert [turn.speaker for turn in first.turns] == ["Alice"]


def test_they_change_no_voice_and_no_other_chapter_s_speech(tmp_path):
    """A narrator without a voice gets one from the book's own words."""
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
        params = SamplingParams(seed=2, max_frames=60, retries=0)
        book = read_book_text(TEXT, "Book")
        assert planning.passage_of(book, "") == planning.passage_of(with_details(book, FACTS, credits=True), "")
        narrate(engine, book, tmp_path, params=params)
        own = {path.name[3:]: path.read_bytes() for path in tmp_path.glob("*.flac")}
        spoken = len(list(tmp_path.rglob("spoken/*/*.safetensors")))
        report = narrate(engine, with_details(book, "opening = Emma.\nclosing = That is all."), tmp_path, params=params)
        assert report.reused == spoken and 0 < report.frames <= 2 * 60
        names = ["01 Opening Credits.flac", "02 One.flac", "03 Two.flac", "04 Closing Credits.flac"]
        assert [file.name for file in report.files] == names
        said = {path.name[3:]: path.read_bytes() for path in tmp_path.glob("0[23]*.flac")}
        assert said.keys() == own.keys()
        changed = narrate(
            engine, with_details(book, "opening = Emma!\nclosing = That is all."), tmp_path, params=params
        )
        assert [file.name for file in changed.files if file.made] == names[:1], "only what was edited"


@pytest.mark.parametrize("kind", ["m4b", "mp3"])
def test_players_show_them_as_chapters(tmp_path, kind):
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book = with_details(read_book_text(TEXT, "Book"), FACTS, credits=True)
    robot = Robot()
    settings = BookSettings(kind=kind, words=robot.words, loudness="ACX")
    report = narrate(robot, book, tmp_path, VOICE, settings=settings)
    assert not any(file.made for file in narrate(robot, book, tmp_path, VOICE, settings=settings).files)
    if kind == "m4b":
        with av.open(str(tmp_path / "Emma.m4b")) as file:
            titles = [chapter["metadata"]["title"] for chapter in file.chapters()]
        assert titles == ["Opening Credits", "One", "Two", "Closing Credits"]
        assert "Narrated by Anna." in (tmp_path / "Emma.srt").read_text(encoding="utf-8")
        return
    assert all("Loudness: -" in str(file) for file in report.files) and len(report.files) == 4
    for file, title, track in zip(
        report.files, ("Opening Credits", "One", "Two", "Closing Credits"), "1234", strict=True
    ):
        with av.open(str(tmp_path / file.name)) as sound:
            assert (sound.metadata["title"], sound.metadata["track"]) == (title, track)
        assert (tmp_path / file.name.replace(".mp3", ".words.json")).is_file()


def test_left_out_chapters_are_counted_without_them():
    from higgs_tts.engine import without_chapters

    made = with_details(without_chapters(read_book_text(TEXT, "Book"), "1"), FACTS, credits=True)
    assert [one.title for one in made.chapters] == ["Opening Credits", "Two", "Closing Credits"]
    assert replace(made, chapters=()).left_out == ("chapter 1 (One)",)
