"""Higgs Lines: files of rows, speaking only changed rows, and the report."""

from __future__ import annotations

import json
import types
import wave
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams, Voice, with_seed
from higgs_tts.engine.files import file_list
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict

VOICE, OTHER = Voice(torch.zeros(50, 8, dtype=torch.int64), "One."), Voice(torch.ones(60, 8, dtype=torch.int64), "Two.")
SHEET = "id,speaker,text,seed\nhello,Anna,Hello.,\ndoor/who,Tom,Who is there?,5\nnone,Tom,,\nbye,Anna,Good bye.,\n"
VOICES = {"voice_1": replace(VOICE, name="Anna"), "voice_2": replace(OTHER, name="Tom")}


@pytest.fixture
def run(load_module, make_engine, tmp_path):
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings = "higgs", ()
    node = load_module("lines").HiggsTTSLines

    def run(lines, **given):
        """Return the texts spoken in this run; `run.audio` and `run.report` are its outputs."""
        before = len(patcher.engine.calls)
        lines = [lines] if isinstance(lines, str) else lines
        output = node.execute(**as_lists(model=patcher, lines=lines, **given))
        run.audio, run.report, run.words = output.args[0]["waveform"], *output.args[1:]
        assert output.ui["text"] == (run.report,)
        run.listed = output.ui["higgs_tts_takes"]
        run.calls = [call for call in patcher.engine.calls[before:] if isinstance(call, tuple) and len(call) == 5]
        assert len(run.calls) <= 1, "all lines together"
        return [turn.text for turns, *_ in run.calls for turn in turns]

    run.engine, run.model, run.node = patcher.engine, patcher.model, node
    run.folder = tmp_path / "output" / "lines"
    return run


def as_lists(**inputs):
    """Return inputs as ComfyUI passes them to a node that takes lists."""
    return {
        name: as_lists(**value) if isinstance(value, dict) else value if name == "lines" else [value]
        for name, value in inputs.items()
        if value is not None
    }


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def contents(folder):
    """Map names to (bytes, modification time)."""
    return {name: ((folder / name).read_bytes(), (folder / name).stat().st_mtime_ns) for name in files_in(folder)}


def test_each_row_becomes_a_file(run):
    assert run(SHEET, voices=VOICES, seed=2) == ["Hello.", "Who is there?", "Good bye."]
    ((turns, given, params, scene, even),) = run.calls
    assert [given[turn.speaker].name for turn in turns] == ["Anna", "Tom", "Anna"]
    assert [turn.seed for turn in turns] == [2, 5, 2] and (params.seed, scene, even) == (2, None, True)
    assert files_in(run.folder) == ["bye.wav", "door/who.wav", "hello.wav", "lines.json"]
    with wave.open(str(run.folder / "door" / "who.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (1, 2, 24000, 5)
        assert file.readframes(5) == b"\xff\x7f" * 5
    assert run.audio.shape == (1, 1, 30)
    told = run.report.splitlines()
    assert told[0] == f"4 rows in {run.folder}: 3 spoken, 1 skipped."
    for line in (
        "hello: 0.00 s, hello.wav, spoken",
        "door/who: 0.00 s, door/who.wav, spoken",
        "none: skipped, no text",
    ):
        assert line in told


def test_a_linked_list_gives_one_row_per_text(run):
    assert run(["One.", "", 'id,text\na,"Two."'], voices=VOICES) == ["One.", 'id,text\na,"Two."']
    assert files_in(run.folder) == ["001.wav", "003.wav", "lines.json"]
    assert run.report.startswith(f"3 rows in {run.folder}: 2 spoken, 1 skipped.")
    assert run(["One.", "Two."], voices=VOICES) == ["Two."]


@pytest.mark.parametrize("name", ["seed", "voices"])
def test_only_lines_are_read_as_a_list(run, name):
    lists = {"seed": [1, 2]} if name == "seed" else {"voices": {"voice_1": [VOICE, OTHER]}}
    with pytest.raises(
        HiggsError, match=r"^Higgs Lines: (seed|voice_1) received 2 values, but only lines can be a list"
    ):
        run.node.execute(lines=["One."], **lists)


def test_only_changed_rows_are_spoken_again(run):
    run(SHEET, voices=VOICES)
    written = (run.folder / "hello.wav").stat().st_mtime_ns
    assert (
        run(SHEET, voices=VOICES) == [] and "3 unchanged, 1 skipped" in run.report and run.audio.shape == (1, 1, 2400)
    )
    assert run(SHEET.replace("Good bye", "Bye"), voices=VOICES) == ["Bye."]
    assert "bye: 0.00 s, bye.wav, spoken" in run.report and "hello: 0.00 s, hello.wav, unchanged" in run.report
    assert run.audio.shape == (1, 1, 10)
    assert run(SHEET, voices=VOICES) == ["Good bye."], "also when it changes back"
    assert run(SHEET, voices=VOICES | {"voice_2": replace(VOICE, name="Tom")}) == ["Who is there?"]
    assert (run.folder / "hello.wav").stat().st_mtime_ns == written
    run(SHEET, voices=VOICES)
    (run.folder / "hello.wav").unlink()
    (run.folder / "bye.wav").write_bytes(b"cut")
    assert run(SHEET, voices=VOICES) == ["Hello.", "Good bye."]
    assert (run.folder / "bye.changed.wav").read_bytes() == b"cut", "what the user has edited"
    assert f"Warning: {run.folder / 'bye.wav'} was changed after it was written, so it was kept as bye." in run.report


@pytest.mark.parametrize("kind", ["flac", "mp3", "ogg"])
def test_files_of_other_kinds_hold_id_speaker_and_workflow(run, kind):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    run.node.hidden.prompt = {"1": {"class_type": "HiggsTTSLines"}}
    run(SHEET, voices=VOICES, save_as=kind, takes=2)
    assert files_in(run.folder)[-2:] == ["hello_2." + kind, "lines.json"]
    with av.open(str(run.folder / "door" / f"who_1.{kind}")) as file:
        tags = {name.lower(): value for name, value in {**file.metadata, **file.streams.audio[0].metadata}.items()}
    assert (tags["title"], tags["artist"]) == ("door/who", "Tom")
    assert json.loads(tags["prompt"])["1"]["class_type"] == "HiggsTTSLines"
    assert run(SHEET, voices=VOICES, save_as=kind, takes=2) == [] and len(run.listed) == 6
    assert run(SHEET.replace("\nbye", "\nbyebye"), voices=VOICES, save_as=kind, takes=2) == [], "only renamed"
    assert run(SHEET, voices=VOICES, takes=2) != [], "and made anew as wav"


def test_an_unknown_kind_of_file_is_named(run):
    with pytest.raises(HiggsError, match=r"Higgs Lines: save_as is 'exe'\. Choose one of: wav, flac, mp3, ogg"):
        run(SHEET, save_as="exe")


@pytest.mark.parametrize(
    ("before", "after", "given"),
    [
        ("id,text\na,One.\nb,Two.", "id,text\nfirst,One.\nb,Two.", {}),
        ("id,text\na,One.\nb,Two.", "id,text\nb,One.\na,Two.", {}),
        ("id,text\na,One.\nb,Two.", "id,text\nact 1/a,One.\nb,Two.", {}),
        ("One.\nTwo.", "id,text\nhello,One.\nbye,Two.", {}),
        ("One.\nTwo.\nThree.", "Two.\nThree.", {}),
        ("id,text\na,One.", "id,text\nb,One.", {"subtitles": True}),
        ("id,text\na,One.", "id,text\nb,One.", {"subtitles": True, "srt_words": 2}),
        ("id,text\na,One.", "id,text\nb,One.", {"takes": 3}),
        ("id,speaker,text\na,Anna,One.", "id,speaker,text\na,Ann,One.", {}),
    ],
)
def test_a_renamed_row_is_kept(run, before, after, given):
    run(before, voices={"voice_1": VOICE}, **given)
    written = {data for data, _ in contents(run.folder).values()}
    assert run(after, voices={"voice_1": VOICE}, **given) == [] and ", spoken" not in run.report
    assert {data for name, (data, _) in contents(run.folder).items() if name != "lines.json"} <= written
    assert run(after, voices={"voice_1": VOICE}, **given) == []


def test_each_renamed_row_keeps_its_own_sound(run):
    run("id,text\na,One.\nb,One more.", voices={"voice_1": VOICE})
    before = contents(run.folder)
    run("id,text\nb,One.\na,One more.", voices={"voice_1": VOICE})
    after = contents(run.folder)
    assert (after["a.wav"][0], after["b.wav"][0]) == (before["b.wav"][0], before["a.wav"][0])


def test_a_row_that_is_there_gives_its_sound_to_no_other(run):
    run("id,text\na,One.")
    assert run("id,text\na,One.\nb,One.") == ["One.", "One."], "without a voice, it is not the same again"


def test_a_renamed_row_has_no_subtitles_of_another_sound(run):
    run("id,text\na,One.\nb,Two.", voices={"voice_1": VOICE})
    run("id,text\nb,Two.", voices={"voice_1": VOICE}, subtitles=True)
    assert run("id,text\nb,One.", voices={"voice_1": VOICE}) == ["One."]
    assert "One." in (run.folder / "b.srt").read_text(encoding="utf-8")


def test_subtitles_are_written_beside_the_sound_and_updated_with_it(run):
    run(SHEET, voices=VOICES)
    assert len(run(SHEET, voices=VOICES, subtitles=True)) == 3, "there are none yet"
    assert files_in(run.folder)[:5] == ["bye.srt", "bye.wav", "door/who.srt", "door/who.wav", "hello.srt"]
    told = (run.folder / "door" / "who.srt").read_text(encoding="utf-8")
    assert told == "1\n00:00:00,000 --> 00:00:00,000\nWho is there?\n"
    assert run(SHEET, voices=VOICES, subtitles=True) == [] == run(SHEET, voices=VOICES)
    assert "earlier runs" not in run.report
    (run.folder / "bye.srt").unlink()
    assert run(SHEET, voices=VOICES) == [] and run(SHEET, voices=VOICES, subtitles=True) == ["Good bye."]
    assert run(SHEET.replace("Good bye", "Bye"), voices=VOICES) == ["Bye."]
    assert "\nBye.\n" in (run.folder / "bye.srt").read_text(encoding="utf-8"), "none says what is not heard"


def test_subtitles_of_words_replace_those_of_sentences(run):
    given = {"voices": VOICES, "subtitles": True}
    assert len(run(SHEET, **given)) == 3 and len(run(SHEET, **given, srt_words=1)) == 3
    assert run(SHEET, **given, srt_words=1) == []
    srt = (run.folder / "hello.srt").read_text(encoding="utf-8")
    assert srt == "1\n00:00:00,010 --> 00:00:00,070\nHello.\n"
    assert len(run(SHEET, **given)) == 3


def test_words_have_the_speakers_of_their_rows(run, comfy):
    comfy["server"].PromptServer.instance = None  # as in scripts, where every output counts as connected
    run("id,speaker,text\na,Anna,Hello.\nb,Tom,Who?\nc,Anna,Bye.\n", voices=VOICES)
    words = [(word["speaker"], word["word"]) for word in json.loads(run.words)["words"]]
    assert words == [("Anna", "Hello."), ("Tom", "Who?"), ("Anna", "Bye.")]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 9},
        {"temperature": 0.5},
        {"scene": "A hall."},
        {"even_loudness": False},
        {"pronunciations": "Hello = Hallo\nGood = Gut"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_settings_speak_rows_again(run, change):
    run(SHEET, voices=VOICES)
    own_seed = "seed" in change or "pronunciations" in change
    assert len(run(SHEET, voices=VOICES, **change)) == (2 if own_seed else 3)
    assert run(SHEET, voices=VOICES, **change) == []


def test_another_checkpoint_speaks_all_rows_again(run):
    run(SHEET, voices=VOICES)
    run.engine.fingerprint = "other files"
    assert len(run(SHEET, voices=VOICES)) == 3


def test_the_page_is_sent_every_existing_take(run):
    run(SHEET, voices=VOICES, takes=2, seed=4, folder="shop/one")
    told = [(take["id"], take["file"], take["seed"], take["own"], take["problem"]) for take in run.listed]
    assert told == [
        ("hello", "hello_1.wav", 4, False, ""), ("hello", "hello_2.wav", 5, False, ""),
        ("door/who", "door/who_1.wav", 5, True, ""), ("door/who", "door/who_2.wav", 6, False, ""),
        ("bye", "bye_1.wav", 4, False, ""), ("bye", "bye_2.wav", 5, False, ""),
    ]  # fmt: skip
    who = run.listed[2]
    assert (who["subfolder"], who["filename"], who["text"]) == ("shop/one/door", "who_1.wav", "Who is there?")
    assert (run.folder.parent / who["subfolder"] / who["filename"]).is_file()
    kept, version = with_seed(SHEET, "door/who", 6), run.listed[3]["version"]
    run(kept, voices=VOICES, seed=4)
    who = next(take for take in run.listed if take["id"] == "door/who")
    assert who["own"] and who["file"] == "door/who.wav" and who["version"] == version, "it is made of the same"


def test_a_take_without_a_voice_of_its_own_is_not_kept(run):
    run("Hello.\nBye.")
    assert all("Connect a voice" in take["problem"] for take in run.listed) and len(run.listed) == 2
    run("text,seed\nOne.,18446744073709551615", voices=VOICES)
    assert run.listed[0]["seed"] is None, "a page would write another one"


def test_takes_have_seeds_of_their_own(run):
    last = 2**64 - 1
    run(f"id,text,seed\na,One.,\nb,Two.,{last}", voices=VOICES, takes=2, seed=4)
    ((turns, *_),) = run.calls
    assert [(turn.text, turn.seed) for turn in turns] == [("One.", 4), ("Two.", last), ("One.", 5), ("Two.", 0)]
    assert files_in(run.folder) == ["a_1.wav", "a_2.wav", "b_1.wav", "b_2.wav", "lines.json"]
    assert len({turn.speaker for turn in turns}) == 4, "no take changes another's noise"
    told = [line for line in run.report.splitlines() if line.startswith("a: ")]
    assert told == ["a: 0.00 s, a_1.wav, spoken", "a: 0.00 s, a_2.wav, spoken"]
    assert len(run("id,text\na,One.", voices=VOICES, takes=3, seed=4)) == 1
    assert "Kept 2 files from earlier runs that match no row (b_1.wav, b_2.wav)." in run.report


def test_speakers_without_a_voice_keep_the_voice_they_got(run):
    """The row's earlier text is spoken again, since its voice and noise come from there."""
    long = (
        "This is a sentence that takes about nine seconds to say, for it goes on and on until nobody remembers how it "
    )
    rows = ["Anna," + (long + "began, or why. ") * 2, "Anna,Two.", "Tom,Three.", "Anna,Four.", "Anna,Two."]

    def sheet():
        return "\n".join(["speaker,text", *(f'{row.split(",", 1)[0]},"{row.split(",", 1)[1]}"' for row in rows)])

    run(sheet())
    ((turns, given, *_),) = run.calls
    assert given == {} and [turn.speaker for turn in turns] == ["Anna", "Anna", "Tom", "Anna", "Anna"]
    rows[3] = "Anna,Four and a half."
    said = run(sheet())
    assert said[0].startswith(long) and said[1:] == ["Two.", "Four and a half."]
    assert run.audio.shape == (1, 1, 10), "what was only said for the voice is not heard"
    assert run.report.count(", spoken") == 1 and run.report.count(", unchanged") == 4
    (run.folder / "005.wav").unlink()
    said = run(sheet())
    assert said[1:] == ["Two.", "Four and a half.", "Two."]
    rows[0] = rows[0].replace("This", "That")
    assert len(run(sheet())) == 4 and run.report.count(", spoken") == 4, "Tom has another voice"


def test_voices_are_matched_as_in_a_dialogue(run, library, load_module):
    VOICE.save(library / "cleo.safetensors")
    run("speaker,text\nBen,One.\ncleo,Two.\n,Three.\nBEN,Four.", voices={"voice_1": OTHER})
    ((turns, given, *_),) = run.calls
    assert [turn.speaker.split("  ")[0] for turn in turns] == ["Ben", "cleo", "", "Ben"]
    assert [turn.speaker in given for turn in turns] == [False, True, True, False]
    before = run.node.fingerprint_inputs(["speaker,text\ncleo,Two."])
    OTHER.save(library / "cleo.safetensors")
    assert run.node.fingerprint_inputs(["speaker,text\ncleo,Two."]) != before
    run("speaker,text\nAda,One.\nBen,Two.\nAda,Three.", voices={"voice_2": OTHER, "voice_3": VOICE}, folder="b")
    ((turns, given, *_),) = run.calls
    assert [given[turn.speaker] for turn in turns] == [OTHER, VOICE, OTHER]
    run.engine.planner.card = types.SimpleNamespace(one_voice=True)
    run("speaker,text\nAda,One.\nBen,Two.", folder="c")
    ((turns, given, *_),) = run.calls
    clips = [path.stem for path in load_module("library.voice_folders").built_in_voices()]
    assert [given[turn.speaker].name for turn in turns] == clips[:2]


def test_pronunciations_are_applied(run, library):
    (library / "pronunciations.txt").write_text("York = Yorrk\n[Tom]\nYork = Jork\n", encoding="utf-8")
    said = run("speaker,text\nAnna,York.\nTom,York.", voices=VOICES)
    assert said == ["Yorrk.", "Jork."] and "York" in run.node.fingerprint_inputs(["One."])[0]


def test_a_damaged_list_counts_as_absent(run):
    run(SHEET, voices=VOICES)
    held = (run.folder / "lines.json").read_text(encoding="utf-8")
    for damaged in (
        "",
        "[]",
        "{}",
        held[:-5],
        held.replace('"bytes"', '"size"'),
        held.replace("hello.wav", "../x.wav"),
    ):
        (run.folder / "lines.json").write_text(damaged, encoding="utf-8")
        assert len(run(SHEET, voices=VOICES)) == 3
        assert "Warning: lines.json in " in run.report and "all files were made again" in run.report
        assert run(SHEET, voices=VOICES) == [] and "Warning" not in run.report


def test_an_interrupted_run_leaves_no_wrong_file(run, monkeypatch):
    """A file being written is not listed, so it is made again even if its text changes back. Others stay."""
    run(SHEET, voices=VOICES)
    changed = SHEET.replace("Hello", "Hallo").replace("Good", "God")

    def full(path, data, write=file_list.write_whole):
        if path.name == "bye.wav":
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(file_list, "write_whole", full)
    with pytest.raises(HiggsError, match=r"Higgs Lines: .*bye\.wav could not be written: No space left"):
        run(changed, voices=VOICES)
    monkeypatch.undo()
    listed = json.loads((run.folder / "lines.json").read_text(encoding="utf-8"))["files"]
    assert sorted(listed) == ["door/who.wav", "hello.wav"] and not list(run.folder.rglob("*.part"))
    assert run(changed, voices=VOICES) == ["God bye."]
    assert run(SHEET, voices=VOICES) == ["Hello.", "Good bye."]


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        *((folder, "empty") for folder in ("", " ", "/")),
        *(
            (folder, "not inside ComfyUI's output")
            for folder in ("..", "a/../..", "/etc", "\\\\host\\share", "C:\\x", "C:x")
        ),
        *((folder, "not a valid name") for folder in ("a//b", "nul", "con.txt/a", "a\0", "what?")),
    ],
)
def test_folders_that_cannot_be_used_are_refused_before_the_run(run, folder, why):
    with pytest.raises(HiggsError, match=rf"^Higgs Lines: folder is .*{why}"):
        run.node.validate_inputs([SHEET], [folder])
    with pytest.raises(HiggsError, match=rf"^Higgs Lines: folder is .*{why}"):
        run(SHEET, folder=folder)
    assert run.engine.calls == []


def test_what_is_wrong_with_a_voice_is_in_the_report(run):
    run(SHEET, voices=VOICES | {"voice_2": replace(OTHER, name="Tom", transcript=None)})
    assert "Warning: Voice Tom: Cloning works less well without a transcript." in run.report.splitlines()


def test_doubtful_words_are_named_with_their_file_and_their_time_in_it(run, monkeypatch):
    doubt = Doubt("missing", "there?", (2, 3), (9, 9))
    found = Verdict("attention", (0,), (Passage((0, 1), (0, 9), (doubt,)),))
    speak = run.engine.speak_turns

    def forgets(turns, *args, **given):
        speech = speak(turns, *args, **given)
        good = Verdict("attention", (0,))
        said = (replace(one, verdict=found if one.text == "Who is there?" else good) for one in speech.said)
        return replace(speech, said=tuple(said))

    monkeypatch.setattr(run.engine, "speak_turns", forgets)
    changed = SHEET.replace("Hello", "Hallo")
    renamed = changed.replace("door/who", "whom")
    for sheet, texts in ((SHEET, 3), (changed, 1), (changed, 0), (renamed, 0)):
        assert len(run(sheet, voices=VOICES)) == texts
        told = [line for line in run.report.splitlines() if "there?" in line]
        name = "whom" if sheet is renamed else "door/who"
        assert told == [f'Warning: {name}.wav: At 0:00.0, "there?" is not heard.'], "the end of its five samples"
        assert run.report.count("Spoken to the end; 1 place is doubtful.") == 1 and "Complete." not in run.report
    run("id,text\nbye,Good bye.", voices=VOICES)
    assert "Complete." in run.report, "of the rows in the sheet"


def test_a_sheet_is_checked_before_the_run(run):
    check = run.node.validate_inputs
    assert check([SHEET]) is check([None], [None]) is check(["One.", "Two."], ["lines"]) is True
    for sheet, told in ((" ", "there are no lines"), ("id,text\na,One, two.", "row 1 has 3 cells")):
        with pytest.raises(HiggsError, match=f"^Higgs Lines: {told}"):
            check([sheet])


def test_nested_folders_are_created(run, tmp_path):
    run("One.", folder=" game\\act 1/ ")
    assert files_in(tmp_path / "output") == ["game/act 1/001.wav", "game/act 1/lines.json"]


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "C:x", "what?", "nul", "a."])
def test_ids_that_make_no_file_name_are_refused(run, name):
    with pytest.raises(HiggsError, match=r"^Higgs Lines: row 2: the id .* cannot be used as a file name"):
        run(f"id,text\na,One.\n{name},Two.")
    assert run.engine.calls == []


def test_rows_without_words_load_no_model(run):
    assert run("id,text\na,\nb,...") == [] and run.engine.calls == []
    assert run.report.startswith(f"2 rows in {run.folder}: 2 skipped.") and not run.folder.exists()
    with pytest.raises(HiggsError, match=r"^Higgs Lines: there are no lines"):
        run(" \n")


def test_rows_that_the_model_cannot_speak_load_no_model(load_module, written):
    """Higgs Audio v2 has no effects. One may also come of a pronunciation."""
    engine = Engine(EngineConfig(str(written["v2"]), device="cpu"))
    patcher = load_module("comfy.sharing").share_patchers([engine], [["files"]], "v2")
    sheet = "id,text\na,<|sfx:laughter|>\nb,[pause 2]\nc,<|prosody:speed_fast|>\nd,Hm\n"
    given = as_lists(model=patcher, lines=[sheet], pronunciations="Hm = <|sfx:humming|>")
    report = load_module("lines").HiggsTTSLines.execute(**given).args[1]
    assert ": 4 skipped.\n" in report and not engine.opened


class TestRunsAgain:
    """ComfyUI runs a node again if `fingerprint_inputs` returns something new for these inputs."""

    @pytest.fixture
    def queue(self, run):
        held = set()

        def queue(lines, behind="", **given):
            """True if the node ran. ComfyUI caches results of old inputs; `behind` stands for values behind links."""
            asked = repr((lines, behind, given, run.node.fingerprint_inputs([lines], **as_lists(**given))))
            if asked in held:
                return False
            run(behind or lines, voices=VOICES, **given)
            held.add(asked)
            return True

        return queue

    def test_the_node_runs_again_only_if_its_files_changed(self, run, queue):
        assert queue(SHEET) and not queue(SHEET)
        for name in ("hello.wav", "lines.json"):
            (run.folder / name).unlink()
            assert queue(SHEET) and not queue(SHEET), name

    def test_a_forced_rerun_without_changes_writes_nothing(self, run):
        """ComfyUI 0.46's --force-output-rerun does so: the files and the list of takes stay unchanged."""
        run(SHEET, voices=VOICES)
        listed, held = run.listed, contents(run.folder)
        assert run(SHEET, voices=VOICES) == [] and contents(run.folder) == held and run.listed == listed
        assert run.report.startswith(f"4 rows in {run.folder}: 3 unchanged, 1 skipped.")
        assert run.audio.shape[-1] > 0, "a node behind it takes no empty sound"

    def test_the_node_runs_again_when_inputs_change_back(self, run, queue):
        other = SHEET.replace("Hello", "Hallo")
        assert queue(SHEET) and queue(other) and queue(SHEET) and not queue(SHEET)
        assert queue(SHEET, temperature=0.5) and queue(SHEET)

    def test_linked_lines_run_again_after_other_lines_ran(self, run, queue):
        """Linked lines are not known before the run. If others were run meanwhile, both run again."""
        assert queue(None, behind="One.") and not queue(None, behind="One.")
        assert queue(None, behind="Two.") and queue(None, behind="One.")
        (run.folder / "001.wav").unlink()
        assert queue(None, behind="One.")

    def test_two_nodes_with_separate_folders_do_not_interfere(self, queue):
        assert queue(SHEET) and queue(SHEET, folder="other") and not queue(SHEET) and not queue(SHEET, folder="other")


def test_the_embedded_engine_speaks_lines(load_module, tmp_path):
    """A lost file is spoken alone, and is the same as when it was spoken among others."""
    engine = Engine(EngineConfig(str(EMBEDDED), device="cpu"))
    patcher = load_module("comfy.sharing").share_patchers([engine], [["files"]], "embedded")
    node, folder = load_module("lines").HiggsTTSLines, tmp_path / "output" / "lines"
    sheet = "id,speaker,text\na,amber,One apple.\nb,Ann,Two.\nc,Ann,Three.\nd,amber,One apple.\n"
    node.execute(**as_lists(model=patcher, lines=[sheet], max_frames=50, takes=2))
    made = {name: (folder / name).read_bytes() for name in files_in(folder) if name.endswith(".wav")}
    assert len(made) == 8 and made["a_1.wav"] == made["d_1.wav"] != made["a_2.wav"]
    for name in ("c_2.wav", "d_1.wav", "a_2.wav"):
        (folder / name).unlink()
    engine.close()  # what it had said before is of no help to another
    other = load_module("comfy.sharing").share_patchers(
        [Engine(EngineConfig(str(EMBEDDED), device="cpu", context=2048))], [["files"]], "embedded"
    )
    audio, report, _ = node.execute(**as_lists(model=other, lines=[sheet], max_frames=50, takes=2)).args
    assert report.count(", spoken") == 3 and report.count(", unchanged") == 5
    assert {name: (folder / name).read_bytes() for name in made} == made
    frames = sum(len(made[name]) - 44 for name in ("c_2.wav", "d_1.wav", "a_2.wav")) // 2
    gap = round(SamplingParams.turn_gap * 24000)
    assert frames <= audio["waveform"].shape[-1] <= frames + 3 * gap
    assert (
        node.execute(**as_lists(model=other, lines=[sheet], max_frames=50, takes=2)).args[1].count(", unchanged") == 8
    )
