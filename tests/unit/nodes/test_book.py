"""Higgs Book: files from ComfyUI's input folder, voices, progress, and speaking only what changed."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest
import soundfile
import torch
from higgs_tts.engine import SAMPLE_RATE, HiggsError, Voice

VOICE, OTHER = Voice(torch.zeros(50, 8, dtype=torch.int64), "One."), Voice(torch.ones(60, 8, dtype=torch.int64), "Two.")
TEXT = "# One\n\nFirst of all.\n\n# Two\n\nAnd then.\n"


@pytest.fixture
def run(load_module, make_engine, comfy, tmp_path):
    (tmp_path / "input" / "novels").mkdir(parents=True)
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings = "higgs", ("the loader's",)
    node = load_module("book").HiggsTTSBook

    def run(**given):
        """Return the texts spoken in this run; `run.report` is its report."""
        before = len(patcher.engine.calls)
        output = node.execute(patcher, **given)
        run.report, folder = output.args
        assert output.ui["text"] == (run.report,) and folder.startswith(str(run.folder.parent))
        run.listed = output.ui["higgs_tts_chapters"]
        run.calls = [call for call in patcher.engine.calls[before:] if isinstance(call, tuple) and len(call) == 5]
        return [turn.text for turns, *_ in run.calls for turn in turns]

    run.engine, run.model, run.node, run.input = patcher.engine, patcher.model, node, tmp_path / "input"
    run.folder, run.mm, run.server = tmp_path / "output" / "book", comfy["comfy.model_management"], comfy["server"]
    run.bars, run.server.PromptServer.instance.client_id = comfy["comfy.utils"].bars, "me"
    return run


def test_a_text_becomes_a_folder(run):
    said = run(text=TEXT, voices={"voice_1": VOICE}, seed=4, scene=" A hall. ", paragraph_gap=0.3)
    assert said == ["One [pause 1.5]", "First of all.", "Two [pause 1.5]", "And then."]
    ((_, voices, params, scene, even),) = run.calls
    assert voices == {"": VOICE} and (scene, even) == ("A hall.", True)
    assert (params.seed, params.paragraph_gap, params.turn_gap) == (4, 0.3, 0.3)
    names = sorted(path.name for path in run.folder.iterdir())
    assert names == ["01 One.flac", "01 One.srt", "02 Two.flac", "02 Two.srt", "book.json", "spoken"]
    told = run.report.splitlines()
    assert told[0].startswith("2 chapters, 3.0 s of speech in ") and str(run.folder) in told[0]
    for line in ("Warning: the loader's", "01 One.flac: 1.5 s, made", "Model: higgs"):
        assert line in told
    assert run.bars[-1] == (500, 1000) and [told for told, *_ in run.server.told] == ["chapter 1 of 2, 0 s left"]
    assert {told[1:] for told in run.server.told} == {("7", "me")}


def test_chapters_are_left_out_and_the_voice_is_the_narrator(run):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    voice = {"voice_1": replace(VOICE, name="Amber")}
    said = run(
        text=TEXT, voices=voice, format="m4b", leave_out="1", details="author = Ann\nyear = 2026", loudness="ACX"
    )
    assert said == ["Two [pause 1.5]", "And then."] and "Left out: chapter 1 (One)." in run.report
    with av.open(str(run.folder / "Book.m4b")) as file:
        assert [file.metadata[name] for name in ("artist", "composer", "date")] == ["Ann", "Amber", "2026"]
    with pytest.raises(HiggsError, match="Higgs Book: leave_out has '3'"):
        run(text=TEXT, leave_out="3")


def test_credits_name_the_voice_as_narrator(run):
    voice = {"voice_1": replace(VOICE, name="Amber")}
    said = run(text=TEXT, voices=voice, details="author = Ann", credits=True)
    assert (said[0], said[-1]) == ("Book. Written by Ann. Narrated by Amber.", f"The end. {said[0]}")
    assert run.report.startswith("4 chapters, ") and "01 Opening Credits.flac: 1.5 s, made" in run.report
    with pytest.raises(HiggsError, match="Higgs Book: the credits need the author and the narrator"):
        run(text=TEXT, credits=True)


def test_a_picture_becomes_the_cover(run):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    pytest.importorskip("PIL.Image", reason="Pillow comes with ComfyUI")
    run(text=TEXT, voices={"voice_1": VOICE}, format="m4b", cover=torch.rand(1, 40, 30, 3))
    with av.open(str(run.folder / "Book.m4b")) as file:
        (picture,) = file.streams.video
        assert (picture.codec_context.name, picture.width, picture.height) == ("mjpeg", 30, 40)


def test_music_lies_under_the_chapters(run):
    music = {"waveform": torch.full((1, 2, 48000), 0.2), "sample_rate": 48000}
    assert run(text=TEXT, voices={"voice_1": VOICE}, bed=music, lower_bed=30.0, loudness="as is")
    wav, rate = soundfile.read(run.folder / "01 One.flac")
    assert (rate, wav.ndim) == (24000, 1) and wav[1000] == pytest.approx(0.2, abs=0.02)


def test_the_page_is_sent_every_file(run):
    run(text=TEXT, voices={"voice_1": VOICE}, folder="novels/one")
    first = run.listed
    assert [(one["filename"], one["subfolder"]) for one in first] == [
        ("01 One.flac", "novels/one"), ("02 Two.flac", "novels/one"),
    ]  # fmt: skip
    assert all(one["seconds"] > 0.9 for one in first)
    run(text=TEXT.replace("And", "But"), voices={"voice_1": VOICE}, folder="novels/one")
    assert run.listed[0] == first[0] and run.listed[1]["version"] != first[1]["version"]


def test_chapters_are_reported_as_soon_as_they_are_whole(run):
    def told():
        return [(client, about["node"], [one["filename"] for one in about["chapters"]])
                for event, about, client in run.server.sent if event == "higgs_tts.chapters"]  # fmt: skip

    run(text=TEXT, voices={"voice_1": VOICE})
    assert told() == [("me", "7", ["01 One.flac"]), ("me", "7", ["01 One.flac", "02 Two.flac"])]
    run.server.sent.clear()
    run(text=TEXT.replace("First", "Best"), voices={"voice_1": VOICE})
    assert told() == [("me", "7", ["01 One.flac", "02 Two.flac"])], "with what is there already, in the book's order"
    assert run.server.sent[0][1]["chapters"] == run.listed


def test_a_chapter_that_was_moved_meanwhile_is_not_listed(run):
    told = []

    def move(event, about, client):
        if event == "higgs_tts.chapters":
            told.append([one["filename"] for one in about["chapters"]])
            (run.folder / told[-1][-1]).rename(run.folder.parent / told[-1][-1])

    run.server.PromptServer.instance.send_sync = move
    run(text=TEXT, voices={"voice_1": VOICE})
    assert told == [["01 One.flac"], ["02 Two.flac"]] and run.listed == []
    assert "01 One.flac: 1.5 s, made" in run.report


def test_an_epub_is_not_read_as_a_script(run):
    (run.input / "novel.epub").write_bytes(b"PK")
    with pytest.raises(HiggsError, match=r"novel\.epub is an EPUB, but a script must be a text file"):
        run(book="novel.epub", script=True)


def test_paragraphs_have_a_gap_by_default(run):
    run(text=TEXT, voices={"voice_1": VOICE})
    assert run.calls[0][2].paragraph_gap == 0.6


def test_finished_chapters_need_no_model(run):
    run(text=TEXT, voices={"voice_1": VOICE})
    loads = len(run.mm.loads)
    assert run(text=TEXT, voices={"voice_1": VOICE}) == [] and len(run.mm.loads) == loads
    assert "01 One.flac: 1.5 s, unchanged" in run.report
    said = run(text=TEXT.replace("And", "But"), voices={"voice_1": VOICE})
    assert said == ["Two [pause 1.5]", "But then."] and len(run.mm.loads) == loads + 1


def test_input_files_are_read_and_others_refused(run, load_module):
    (run.input / "novels" / "a.txt").write_text("Chapter 1\n\nFrom a file.", encoding="utf-8")
    (run.input / "picture.png").write_bytes(b"")
    options = next(one for one in run.node.define_schema().inputs if one.args[0] == "book").options
    assert options == [load_module("book").OWN_TEXT, "novels/a.txt"]
    assert run(book="novels/a.txt", voices={"voice_1": VOICE}) == ["Chapter 1 [pause 1.5]", "From a file."]
    assert run.node.validate_inputs("novels/a.txt", "", None) is run.node.validate_inputs(None, None) is True
    with pytest.raises(HiggsError, match=r"^Higgs Book: there is no book 'b\.txt'"):
        run.node.validate_inputs("b.txt")
    with pytest.raises(HiggsError, match=r"Higgs Book: there is no book '\.\./a\.txt'"):
        run(book="../a.txt")


@pytest.mark.parametrize("script", [False, True])
def test_a_guessed_encoding_is_on_the_node_before_speech_and_in_the_report(run, script):
    text = "Anna: Der Zug nach Köln fährt früh.\nTom: Grüße!\n"
    (run.input / "novels" / "a.txt").write_bytes(text.encode("mac_roman"))
    run(book="novels/a.txt", script=script)
    told = "a.txt is not UTF-8 and was read as Mac Roman: 'Anna: Der Zug nach Köln fährt früh.'. If letters are wrong, "
    assert told in run.server.told[0][0] and "chapter 1 of 1" in run.server.told[-1][0]
    assert f"Warning: {told}save it as UTF-8." in run.report


def test_a_forced_rerun_without_changes_writes_nothing(run):
    """ComfyUI 0.46's --force-output-rerun does so."""

    def contents():
        return {
            path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.folder.rglob("*.*") if path.is_file()
        }

    run(text=TEXT, voices={"voice_1": VOICE})
    listed, held = run.listed, contents()
    assert run(text=TEXT, voices={"voice_1": VOICE}) == [] and contents() == held and run.listed == listed
    assert "01 One.flac: 1.5 s, unchanged" in run.report


def test_a_changed_file_runs_the_node_again(run):
    path = run.input / "a.txt"
    path.write_text("One.", encoding="utf-8")

    def stamp():
        return run.node.fingerprint_inputs("a.txt", TEXT)

    first = stamp()
    run(book="a.txt", voices={"voice_1": VOICE})
    assert stamp() == first, "its own run changes nothing"
    (run.folder / "01 a.flac").unlink()
    assert (second := stamp()) != first
    run(book="a.txt", voices={"voice_1": VOICE})
    assert stamp() == second
    path.write_text("Another.", encoding="utf-8")
    assert stamp() != second


def test_a_script_s_names_are_matched_as_in_a_dialogue(run):
    voices = {"voice_1": VOICE, "voice_2": OTHER, "voice_3": OTHER}
    run(text="It was dark.\n**Ben:** One.\n**Ada:** Two.", script=True, voices={**voices, "voice_2": replace(OTHER)})
    for told in ("Ben and Ada have only one line each", "before the first name is spoken in the voice of Ben"):
        assert f"Warning: {told}" in run.report or f"Warning: Text {told}" in run.report
    assert "Warning: No speaker uses the connected voice 3." in run.report


def test_a_script_finds_its_voices(run, library):
    script = "Ben: One.\nAda: Two.\nBen: Three.\nAda: Four."
    run(text=script, script=True, voices={"voice_1": VOICE, "voice_2": OTHER})
    ((turns, voices, *_),) = run.calls
    assert [turn.speaker for turn in turns] == ["Ben", "Ada", "Ben", "Ada"] and voices == {"Ben": VOICE, "Ada": OTHER}
    named = {"voice_1": replace(VOICE, name="Ada"), "voice_2": replace(OTHER, name="Ben")}
    run(text=script, script=True, voices=named)
    ((_, voices, *_),) = run.calls
    assert (voices["Ben"].transcript, voices["Ada"].transcript) == ("Two.", "One.")
    VOICE.save(library / "cleo.safetensors")
    run(text="Ben = cleo\nAda = 1\n\n" + script, script=True, voices={"voice_1": OTHER})
    ((_, voices, *_),) = run.calls
    assert voices["Ben"].transcript == "One." and voices["Ada"] is OTHER
    run.engine.planner.card = types.SimpleNamespace(one_voice=True)
    run(text=script, script=True)
    assert len({voice.name for voice in run.calls[-1][1].values()}) == 2


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize(
    "named", ["Ben = cleo\nBen: One.", "Ben = input/cleo.wav\nBen: One.", "cleo: One.\ncleo: Two."]
)
def test_a_changed_voice_of_a_script_runs_the_node_again(run, library, named, is_file):
    (run.input / "a.txt").write_text(named, encoding="utf-8")
    asked = {"book": "a.txt", "text": TEXT} if is_file else {"book": "the text below", "text": named}
    places = library / "cleo.wav", run.input / "cleo.wav"
    before = run.node.fingerprint_inputs(**asked, script=True)
    for path in places:
        path.write_bytes(b"a clip")
    after = run.node.fingerprint_inputs(**asked, script=True)
    assert after == run.node.fingerprint_inputs(**asked, script=True) != before
    assert run.node.fingerprint_inputs(**asked, script=None) != before, "a linked switch may be on"
    assert run.node.fingerprint_inputs(**asked) == before, "text that is not a script names no voices"


def test_stop_ends_the_book(run, interrupted):
    run.mm.stop = True
    with pytest.raises(interrupted):
        run(text=TEXT, voices={"voice_1": VOICE})
    assert not list(run.folder.rglob("*.flac"))


def test_pronunciations_are_applied(run):
    assert run(text="Nguyen.", voices={"voice_1": VOICE}, pronunciations="Nguyen = Win") == ["Win."]


def test_bad_input_is_refused_with_the_node_s_name(run):
    for given, told in (
        ({"text": " \n"}, "the text is empty"),
        ({"text": "A.", "folder": "../elsewhere"}, "not inside ComfyUI's output"),
        ({"text": "A.", "folder": " "}, "folder is empty"),
        ({"text": "A.", "folder": "con"}, "not a valid name on every system"),
    ):
        with pytest.raises(HiggsError, match=rf"^Higgs Book: .*{told}"):
            run.node.validate_inputs(**{"book": "the text below", **given})
        with pytest.raises(HiggsError, match=rf"^Higgs Book: .*{told}"):
            run(**given)


def test_the_sound_of_a_book_equals_its_speech(run):
    soundfile = pytest.importorskip("soundfile")
    run(text="One.", voices={"voice_1": VOICE}, format="wav")
    samples, rate = soundfile.read(run.folder / "01 Book.wav", dtype="int16")
    assert rate == SAMPLE_RATE and samples[SAMPLE_RATE // 2 :][:5].tolist() == [32767] * 5
    assert len(samples) == SAMPLE_RATE * 3 // 2 + 5
