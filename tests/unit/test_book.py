"""Books as files: a resumed run gives the same bytes, and speaks only what is missing."""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Book,
    BookSettings,
    Engine,
    EngineConfig,
    FileList,
    HiggsError,
    SamplingParams,
    SpeechResult,
    SpokenTurn,
    Turn,
    Voice,
    narrate,
    read_book_text,
    read_pronunciations,
    with_details,
    without_chapters,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.book import chapters as planning
from higgs_tts.engine.book import sound_file
from higgs_tts.engine.book.sound_file import BySoundfile, Tags, open_sound, seconds_of
from higgs_tts.engine.prompt.script import read_pauses
from higgs_tts.engine.speech import attempts
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.words.estimate import estimate
from higgs_tts.tests.epub_files import COVER
from higgs_tts.tests.measured import true_peak
from higgs_tts.tests.watched import ending

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARAMS = SamplingParams(seed=2, max_frames=30, retries=0, paragraph_gap=0.6)
TEXT = """# One

The first chapter has so many words in its first paragraph that a narrator who has no voice gets one from them.

It goes on. It goes on.

# Two / 2?

It goes on. It goes on.

[pause 2]

The end."""


def made_in(folder, *kinds):
    """Map names to bytes, of output files and of saved sequences."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "book.json"]
    assert not [path for path in found if path.name.endswith(".part")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def engine(written):
    """A tiny one, with ends: words that come again last longer each time."""
    with (
        Engine(EngineConfig(str(written["v3"]), device="cpu", context=512)) as engine,
        ending(engine.loaded.talker, lambda sampler: 12 + 3 * sampler.sequence_index),
    ):
        yield engine


@pytest.fixture(scope="module")
def embedded():
    """One whose words can be followed."""
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def whole(engine, tmp_path_factory):
    """The book, spoken without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, narrate(engine, read_book_text(TEXT, "Book"), folder, params=PARAMS)


def said_by(engine, monkeypatch):
    """Return a list that collects texts sent to the engine from now on."""
    said, real = [], engine.speak_turns

    def spy(turns, *rest, **given):
        said.extend(turn.text for turn in turns)
        return real(turns, *rest, **given)

    monkeypatch.setattr(engine, "speak_turns", spy)
    return said


def test_a_file_and_subtitles_for_each_chapter(whole):
    soundfile = pytest.importorskip("soundfile")
    folder, report = whole
    assert [file.name for file in report.files] == ["01 One.flac", "02 Two 2.flac"]
    assert all(file.made for file in report.files) and report.reused == 0 and report.frames > 80
    assert sorted(path.name for path in folder.iterdir()) == [
        "01 One.flac", "01 One.srt", "02 Two 2.flac", "02 Two 2.srt", "book.json", "spoken",
    ]  # fmt: skip
    with soundfile.SoundFile(folder / "02 Two 2.flac") as file:
        assert (file.samplerate, file.channels, file.subtype) == (SAMPLE_RATE, 1, "PCM_16")
        assert (file.title, file.album, file.tracknumber) == ("Two / 2?", "Book", "2")
        samples = file.read(dtype="int16")
    srt = (folder / "02 Two 2.srt").read_text(encoding="utf-8")
    assert re.findall(r"-->.*\n(.*)\n", srt) == ["Two / 2?", "It goes on.", "It goes on.", "The end."]
    times = [float(a) * 60 + float(b.replace(",", ".")) for a, b in re.findall(r"00:(\d\d):(\d\d,\d{3})", srt)]
    assert times == sorted(times) and times[0] >= 0.5 and times[-1] <= len(samples) / SAMPLE_RATE - 0.999
    quiet = np.flatnonzero(np.diff(np.concatenate([[0], (samples == 0).astype(int), [0]])))
    lengths = ((quiet[1::2] - quiet[::2]) / SAMPLE_RATE).round(2).tolist()
    # At the beginning, behind the heading, where a pause stands, at the end.
    assert [length for length in lengths if length >= 0.45] == [0.5, 1.5, 2.0, 1.0]
    assert report.seconds == pytest.approx(sum(seconds_of(folder / file.name) for file in report.files))


def test_finished_chapters_are_left_alone(engine, whole, monkeypatch):
    folder, _ = whole
    before, said = made_in(folder), said_by(engine, monkeypatch)
    report = narrate(engine, read_book_text(TEXT, "Book"), folder, params=PARAMS)
    assert said == [] and not any(file.made for file in report.files) and made_in(folder) == before


@pytest.mark.parametrize(
    ("lost", "spoken_again"),
    [
        (["01 One.flac"], 0),
        (["02 Two 2.srt"], 0),
        (["book.json"], 0),
        (["01 One.flac", "02 Two 2.flac", "spoken"], 6),
    ],
)
def test_lost_files_are_made_again_and_equal(engine, whole, tmp_path, lost, spoken_again):
    """Lost sound is decoded from the saved codes. Repeated words are numbered, so they may vary."""
    import shutil

    folder, expected = tmp_path / "book", made_in(whole[0])
    shutil.copytree(whole[0], folder)
    for name in lost:
        shutil.rmtree(folder / name) if name == "spoken" else (folder / name).unlink()
    report = narrate(engine, read_book_text(TEXT, "Book"), folder, params=PARAMS)
    assert made_in(folder) == expected
    assert bool(report.frames) == bool(spoken_again) and (report.reused > 0) != bool(spoken_again)


def test_turns_without_words_are_silent(engine, tmp_path):
    """Pronunciations may leave no words: in the middle, and at a chapter's end."""
    text = "# One\n\nHello there.\n\nHmm.\n\nGood bye.\n\nHmm.\n\n# Two\n\nThe end."
    book = read_book_text(text, "Book").said_as(read_pronunciations("Hmm = [pause 1]"))
    report = narrate(engine, book, tmp_path, params=PARAMS)
    assert [file.name for file in report.files] == ["01 One.flac", "02 Two.flac"]
    assert (
        "Hello there." in (srt := (tmp_path / "01 One.srt").read_text(encoding="utf-8"))
        and "Good bye." in srt
        and "Hmm" not in srt
    )
    assert narrate(engine, book, tmp_path, params=PARAMS).frames == 0


def test_a_damaged_sequence_is_spoken_again(engine, whole, tmp_path):
    import shutil

    folder, expected = tmp_path / "book", made_in(whole[0])
    shutil.copytree(whole[0], folder)
    (folder / "01 One.flac").unlink()
    for path in (folder / "spoken").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:30])
    report = narrate(engine, read_book_text(TEXT, "Book"), folder, params=PARAMS)
    assert any("could not be read and were spoken again" in warning for warning in report.warnings)
    assert {name: data for name, data in made_in(folder).items() if "spoken" not in name} == {
        name: data for name, data in expected.items() if "spoken" not in name
    }


@pytest.mark.parametrize("codes", [30_000, -1, 1024, None])
def test_kept_codes_that_are_not_as_written_are_spoken_again(engine, whole, tmp_path, codes):
    """By range, shape, type, and for None by digest: only one code is another."""
    import shutil

    from safetensors import safe_open
    from safetensors.torch import save_file

    folder, expected = tmp_path / "book", made_in(whole[0])
    shutil.copytree(whole[0], folder)
    (folder / "01 One.flac").unlink()
    for number, path in enumerate(sorted((folder / "spoken").rglob("*.safetensors"))):
        with safe_open(path, framework="pt") as file:
            held, metadata = file.get_tensor("codes").clone(), file.metadata()  # Windows replaces no mapped file
        damaged = held.clone() if codes is None else torch.full_like(held, codes)
        damaged[0, 0] = (int(held[0, 0]) + 1) % 1024 if codes is None else codes
        odd = (damaged, damaged.reshape(-1), damaged.float(), damaged[0, 0].clone(), torch.full(held.shape, torch.nan))
        save_file({"codes": odd[number % len(odd)]}, path, metadata)
    report = narrate(engine, read_book_text(TEXT, "Book"), folder, params=PARAMS)
    assert report.reused == 0 and any("were spoken again" in warning for warning in report.warnings)
    assert {name: data for name, data in made_in(folder).items() if "spoken" not in name} == {
        name: data for name, data in expected.items() if "spoken" not in name
    }


def test_an_edit_changes_only_its_chapter(engine, whole, tmp_path):
    import shutil

    folder = tmp_path / "book"
    shutil.copytree(whole[0], folder)
    report = narrate(engine, read_book_text(TEXT.replace("The end.", "That is all."), "Book"), folder, params=PARAMS)
    assert [file.made for file in report.files] == [False, True] and report.reused > 0
    report = narrate(engine, read_book_text(TEXT, "Book"), folder, params=replace(PARAMS, seed=3))
    assert [file.made for file in report.files] == [True, True] and report.reused == 0


def test_grouping_turns_changes_nothing(engine, whole, tmp_path, monkeypatch):
    """Long chapters are spoken in several groups. The pause between two of them stays unchanged."""
    monkeypatch.setattr(planning, "GROUP_SECONDS", 1.0)
    narrate(engine, read_book_text(TEXT, "Book"), tmp_path, params=PARAMS)
    assert made_in(tmp_path) == made_in(whole[0])


def test_a_bound_book_is_the_same_however_its_turns_are_grouped(engine, tmp_path, monkeypatch):
    """A resumed run groups them differently. The list holds the sizes of the cues' files, so it must not change."""
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book = read_book_text("# One\n\n" + "\n\n".join(f"This is paragraph number {n} of all." for n in range(9)), "Book")
    narrate(engine, book, tmp_path / "a", params=PARAMS, settings=BookSettings(kind="m4b"))
    monkeypatch.setattr(planning, "GROUP_SECONDS", 4.0)
    narrate(engine, book, tmp_path / "b", params=PARAMS, settings=BookSettings(kind="m4b"))
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b")
    assert (tmp_path / "a" / "book.json").read_bytes() == (tmp_path / "b" / "book.json").read_bytes()


@pytest.mark.parametrize(
    "damaged", ["01 One.flac", "Book.m4b", "spoken/chapters/01 One.flac", "spoken/chapters/01 One.json"]
)
def test_a_damaged_kept_file_is_made_again(tmp_path, damaged):
    """Its size and its entry in the list are right, as after two simultaneous runs."""
    kind = "flac" if "/" not in damaged and damaged.endswith(".flac") else "m4b"
    if kind == "m4b":
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book, voice = read_book_text("# One\n\nIt goes on.", "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind))
    before, path = made_in(tmp_path), tmp_path / damaged
    path.write_bytes(b"\0" * path.stat().st_size)
    narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind))
    assert made_in(tmp_path) == before


@pytest.mark.parametrize("kind", ["flac", "m4b"])
def test_files_that_the_user_has_changed_are_kept_under_other_names(tmp_path, kind):
    if kind == "m4b":
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book, voice = read_book_text("# One\n\nIt goes on.", "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind))
    before, name = made_in(tmp_path), "01 One" if kind == "flac" else "Book"
    for number, text in enumerate(("mine", "mine, again")):
        (tmp_path / f"{name}.srt").write_text(text, encoding="utf-8")
        kept = f"{name}.changed{number or ''}.srt"
        report = narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind))
        warning = f"{tmp_path / name}.srt was changed after it was written, so it was kept as {kept}."
        assert [one for one in report.warnings if "changed" in one] == [warning]
        before[kept] = text.encode()
        assert made_in(tmp_path) == before


@pytest.mark.parametrize("kind", ["flac", "m4b"])
def test_changed_words_are_kept_though_none_are_wanted_any_more(tmp_path, kind):
    if kind == "m4b":
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    voice, robot = {"": Voice(torch.zeros(50, 8).long(), "A.")}, Robot()
    narrate(
        robot,
        read_book_text("# One\n\nIt goes on.", "Book"),
        tmp_path,
        voice,
        None,
        BookSettings(kind=kind, words=robot.words),
    )
    name = "Book" if kind == "m4b" else "01 One"
    (tmp_path / f"{name}.words.json").write_text("mine", encoding="utf-8")
    report = narrate(
        robot, read_book_text("# One\n\nIt went on.", "Book"), tmp_path, voice, settings=BookSettings(kind=kind)
    )
    assert (tmp_path / f"{name}.words.changed.json").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / f"{name}.words.json").exists()
    assert any("was changed after it was written" in one for one in report.warnings)


@pytest.mark.parametrize("place", [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_a_part_that_is_damaged_inside_is_named_or_made_again(tmp_path, place):
    """Sound can be read from its end, as is found out before."""
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book, voice = read_book_text("# One\n\nIt goes on.", "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind="m4b"))
    before, path = made_in(tmp_path), tmp_path / "spoken" / "chapters" / "01 One.flac"
    data = bytearray(path.read_bytes())
    at = int(place * len(data))
    data[at : at + 400] = bytes(400)
    path.write_bytes(data)
    (tmp_path / "Book.m4b").unlink()
    try:
        narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind="m4b"))
    except HiggsError as error:
        assert f"{path} is damaged" in str(error)
        path.unlink()
        narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind="m4b"))
        assert made_in(tmp_path) == before
    assert (tmp_path / "Book.m4b").is_file()


def test_two_runs_cannot_write_the_same_book(tmp_path):
    book, voice = read_book_text(TEXT, "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    refused = []

    def begin_another(progress):
        with pytest.raises(HiggsError, match="Another run is writing to") as error:
            narrate(Robot(), book, tmp_path, voice)
        refused.append(str(tmp_path) in str(error.value))

    narrate(Robot(), book, tmp_path, voice, on_progress=begin_another)
    assert refused and all(refused)
    assert not any(file.made for file in narrate(Robot(), book, tmp_path, voice).files)


def test_leftovers_of_killed_runs_are_removed(tmp_path):
    left = [tmp_path / f".{'a' * 32}.part", tmp_path / "spoken" / "ab" / f".{'b' * 32}.part"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    (tmp_path / ".mine.part").write_bytes(b"mine")
    narrate(Robot(), read_book_text(TEXT, "Book"), tmp_path, {"": Voice(torch.zeros(50, 8).long(), "A.")})
    assert not any(path.exists() for path in left) and (tmp_path / ".mine.part").exists()


class Stopped(Exception):
    pass


def test_a_cancelled_book_keeps_finished_chapters(engine, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "GROUP_SECONDS", 1.0)
    seen = []

    def stop(progress):
        seen.append(progress)
        if progress.chapter == 2:
            raise Stopped

    with pytest.raises(Stopped):
        narrate(engine, read_book_text(TEXT, "Book"), tmp_path, params=PARAMS, on_progress=stop)
    assert (tmp_path / "01 One.flac").is_file() and not list(tmp_path.glob("02*"))
    assert not list(tmp_path.rglob("*.part"))
    shares = [progress.share for progress in seen]
    assert shares == sorted(shares) and shares[0] >= 0 and 0.3 < shares[-1] < 1 and seen[-1].chapters == 2
    assert seen[-1].left is not None and "chapter 2 of 2, " in str(seen[-1]) and str(seen[-1]).endswith(" left")
    report = narrate(engine, read_book_text(TEXT, "Book"), tmp_path, params=PARAMS)
    assert [file.made for file in report.files] == [False, True] and made_in(tmp_path) == made_in(whole[0])


def test_retried_takes_are_the_same_after_resuming(engine, tmp_path, monkeypatch):
    """All attempts at one paragraph but the third are bad. The third is kept, whatever was on disk already."""
    judged = []

    def judge(sequence, wav):
        judged.append(sequence.text)
        return ("long",) if sequence.text == "The end." and judged.count("The end.") < 3 else ()

    monkeypatch.setattr(attempts, "judge", judge)
    params, book = replace(PARAMS, retries=2), read_book_text(TEXT, "Book")
    report = narrate(engine, book, tmp_path / "a", params=params)
    assert [chunk.kept for chunk in report.spoken_again] == [3]

    def stop(progress):
        if judged.count("The end.") == 2:  # the third take is under way
            raise Stopped

    judged.clear()
    with pytest.raises(Stopped):
        narrate(engine, book, tmp_path / "b", params=params, on_progress=stop)
    judged.clear()
    report = narrate(engine, book, tmp_path / "b", params=params)
    assert report.reused > 0 and [chunk.kept for chunk in report.spoken_again] == [3]
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b")


def test_words_of_a_resumed_book_are_the_same(embedded, tmp_path):
    """They come from the saved codes. Asking for them later speaks nothing."""
    book = read_book_text("# One\n\nIt begins.\n\n# Two" + TEXT.partition("# Two")[2], "Book")
    report = narrate(
        embedded, book, tmp_path / "a", params=PARAMS, settings=BookSettings(words=embedded.words, srt_words=2)
    )
    rows = json.loads((tmp_path / "a" / "02 Two 2.words.json").read_text(encoding="utf-8"))["words"]
    assert " ".join(row["word"] for row in rows) == "Two / 2? It goes on. It goes on. The end."
    times = [row[side] for row in rows for side in ("start", "end")]
    assert times == sorted(times) and times[0] >= 0.5 and times[-1] <= report.files[1].seconds - 0.999
    srt = (tmp_path / "a" / "02 Two 2.srt").read_text(encoding="utf-8")
    assert re.findall(r"-->.*\n(.*)\n", srt)[:4] == ["Two / 2?", "It goes", "on.", "It goes"]

    def stop(progress):
        if len(list((tmp_path / "b").rglob("spoken/*/*.safetensors"))) >= 3:
            raise Stopped

    with pytest.raises(Stopped):
        narrate(embedded, book, tmp_path / "b", params=PARAMS, on_progress=stop)
    resumed = narrate(
        embedded, book, tmp_path / "b", params=PARAMS, settings=BookSettings(words=embedded.words, srt_words=2)
    )
    assert [file.made for file in resumed.files] == [True, True] and resumed.reused > 0
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b")
    again = narrate(
        embedded, book, tmp_path / "b", params=PARAMS, settings=BookSettings(words=embedded.words, srt_words=2)
    )
    assert not any(file.made for file in again.files)
    narrate(embedded, book, tmp_path / "b", params=PARAMS)
    assert not list((tmp_path / "b").glob("*.words.json")), "those of an earlier form are not left"


def test_a_bound_book_has_the_words_of_its_chapters(tmp_path):
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    voice, robot = {"": Voice(torch.zeros(50, 8).long(), "A.")}, Robot()
    made = "A book.words.json", "A book.srt"
    for name in "ab":
        for text in ("# One\n\nIt is.", "# One\n\nIt is.\n\n# Two\n\nIt ends."):  # the first chapter is kept
            book = read_book_text(text, "A book")
            narrate(robot, book, tmp_path / name, voice, settings=BookSettings(kind="m4b", words=robot.words))
    rows = json.loads((tmp_path / "a" / made[0]).read_text(encoding="utf-8"))["words"]
    assert [row["word"] for row in rows] == ["One", "It", "is.", "Two", "It", "ends."]
    assert [round(row["start"]) for row in rows[::3]] == [0, 4] and made_in(tmp_path / "a") == made_in(tmp_path / "b")
    for name in made:
        (tmp_path / "a" / name).unlink()
    narrate(robot, book, tmp_path / "a", voice, settings=BookSettings(kind="m4b", words=robot.words))
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b")


def test_the_terminal_writes_the_words_of_a_book(tmp_path):
    (tmp_path / "book.txt").write_text("It ends here.", encoding="utf-8")
    command = ["narrate", tmp_path / "book.txt", "--out", tmp_path / "out", "--device", "cpu", "--max-frames", "60"]
    assert main([*map(str, command), "--words"]) == 0
    (words,) = (tmp_path / "out").glob("*.words.json")
    assert [row["word"] for row in json.loads(words.read_text(encoding="utf-8"))["words"]] == ["It", "ends", "here."]


def test_the_terminal_writes_details_and_a_cover(tmp_path, capsys):
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    (tmp_path / "book.txt").write_text("CHAPTER 1\n\nIt begins.\n\nCHAPTER 2\n\nIt ends here.", encoding="utf-8")
    (tmp_path / "cover.png").write_bytes(COVER)
    command = ["narrate", tmp_path / "book.txt", "--out", tmp_path / "out", "--device", "cpu", "--max-frames", "60"]
    command += ["--format", "mp3", "--detail", "narrator = Anna", "--detail", "year=2026", "--leave-out", "1"]
    assert main([*map(str, command), "--cover", str(tmp_path / "cover.png")]) == 0
    (made,) = (tmp_path / "out").glob("*.mp3")
    with av.open(str(made)) as file:
        tags = {name.lower(): value for name, value in file.metadata.items()}
        assert (tags["composer"], tags["date"]) == ("Anna", "2026") and len(file.streams.video) == 1
    assert "left out: chapter 1" in capsys.readouterr().err
    for wrong, told in (
        (["--detail", "mood = sad"], "details has 'mood = sad'"),
        (["--cover", tmp_path / "none.png"], "none.png cannot be read"),
        (["--cover", tmp_path / "book.txt"], "the cover cannot be read as a JPEG or PNG"),
        (["--leave-out", "9"], "leave_out has '9'"),
    ):
        assert main([*map(str, [*command, *wrong])]) == 2 and told in capsys.readouterr().err


def wait_for(process, folder, count):
    """Wait until so many sequences are saved."""
    while len(list(folder.rglob("spoken/*/*.safetensors"))) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)


def test_a_book_killed_twice_is_the_same_to_the_byte(tmp_path):
    """SIGKILL leaves no time for cleaning up."""
    lines = [f"The {number} line." for number in ("first", "second", "third", "fourth")]
    parts = ["CHAPTER 1", *lines[:2], "CHAPTER 2", *lines[2:], *lines[:2], "CHAPTER 3", "That is all."]
    book = tmp_path / "book.txt"
    book.write_text("\n\n".join(parts), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(folder):
        return ["narrate", str(book), "--out", str(folder), "--device", "cpu"]

    for count in (3, 6):
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", *command(tmp_path / "killed")],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(process, tmp_path / "killed", count)
        process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        process.communicate()
    assert len(list((tmp_path / "killed").glob("0*.flac"))) < 3  # of three
    for name in ("killed", "whole"):
        assert main(command(tmp_path / name)) == 0
    killed, whole = (
        {name: data for name, data in made_in(tmp_path / name).items() if not name.startswith(".")}
        for name in ("killed", "whole")
    )
    assert killed == whole and sum(name.endswith(".flac") for name in whole) == 3


class Robot:
    """Speaks instantly: seconds of noise per turn. Counts how many of its results are alive when it speaks again."""

    fingerprint = "robot"

    def __init__(self, seconds=1.0):
        self.seconds, self.given, self.alive, self.results = seconds, [], [], []

    def words(self, speech):
        return [word for chunk in speech.said for word in estimate(speech.wav, chunk)]

    def speak_turns(self, turns, voices, params, scene, listener, *, reuse, even):
        self.alive.append(sum(result() is not None for result in self.results))
        self.given.append((turns, dict(voices), params, scene, even))
        listener.on_frame(1, 2)
        size = round(self.seconds * SAMPLE_RATE)
        spoken = [
            SpokenTurn(one.speaker, read_pauses(one.text).text.strip(), at * size, (at + 1) * size)
            for at, one in enumerate(turns)
        ]
        wav = 0.1 * torch.randn(len(turns) * size, generator=torch.Generator().manual_seed(len(turns)))
        codes = torch.zeros(100 * len(turns), 8, dtype=torch.int64)
        result = SpeechResult(
            wav, codes, 0.1, len(turns), "end of speech", turns=tuple(spoken), said=tuple(spoken), how="noise"
        )
        self.results.append(weakref.ref(wav))
        return result


def test_long_books_take_no_more_memory_than_short_ones(tmp_path):
    """Nothing of a group is left when the next one is spoken, and a group is some 20 minutes at most."""
    text = "\n\n".join(f"This is paragraph {number} of a book that has but one chapter." for number in range(2000))
    robot = Robot(0.01)
    report = narrate(robot, read_book_text(text, "Long"), tmp_path, {"": Voice(torch.zeros(50, 8).long(), "A.")})
    assert len(robot.given) > 5 and robot.alive == [0] * len(robot.given)
    assert report.seconds == pytest.approx(2000 * 0.01 + 1999 * 0.0 + 1.5, abs=5)
    assert max(sum(len(turn.text) / 15 for turn in turns) for turns, *_ in robot.given) < 1300


def test_speakers_without_a_voice_get_one_and_keep_it(tmp_path):
    script = "Anna = 1\nTom = 2\n\nAnna: Nobody knows.\n\nChapter 1\n\nAnna: One. [pause 1]\nTom: Two.\n\n"
    script += "Chapter 2\nAnna: Three.\n"
    book, given = read_book_text(script, "Script", is_script=True), Voice(torch.ones(50, 8).long(), "I am Tom.")
    assert book.speakers == ["Anna", "Tom"] and book.head == {"Anna": "1", "Tom": "2"}
    robot = Robot()
    narrate(robot, book, tmp_path, {"Tom": given}, PARAMS, settings=BookSettings(scene="A hall.", even=False))
    (first, turns) = robot.given
    assert [turn.text for turn in first[0]] == ["Nobody knows. Chapter 1 One. Chapter 2 Three."]
    assert [turn.speaker for turn in turns[0]] == ["Anna", "Anna", "Anna", "Tom", "Anna", "Anna"]
    assert turns[1]["Tom"] is given and turns[1]["Anna"].transcript == "Nobody knows. Chapter 1 One. Chapter 2 Three."
    assert turns[2].turn_gap == PARAMS.paragraph_gap and turns[3:] == ("A hall.", False)
    assert [turn.occurrence for turn in turns[0]] == [0] * 6
    srt = (tmp_path / "02 Chapter 1.srt").read_text(encoding="utf-8")
    assert "\nAnna: One.\n" in srt and "\nTom: Two.\n" in srt
    again = Robot()
    narrate(
        again,
        book,
        tmp_path,
        {"Tom": replace(given, transcript="Another.")},
        PARAMS,
        settings=BookSettings(scene="A hall.", even=False),
    )
    assert [turn.text for turns, *_ in again.given for turn in turns][1:] == [
        "Chapter 1 [pause 1.5]",
        "One. [pause 1]",
        "Two.",
    ]


def test_repeated_words_are_numbered_over_the_whole_book():
    said = [turn.occurrence for one in planning.number_turns(read_book_text(TEXT, "Book")) for turn in one.turns]
    assert said == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", ["mp3", "m4b"])
def test_mp3_and_m4b_files_carry_tags_chapters_and_subtitles(tmp_path, kind, caplog):
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book = replace(read_book_text(TEXT, "A book"), author="Nobody")
    voice = {"": Voice(torch.zeros(50, 8).long(), "A.")}
    reports = [narrate(Robot(), book, tmp_path / name, voice, settings=BookSettings(kind=kind)) for name in "ab"]
    names = ["01 One.mp3", "02 Two 2.mp3"] if kind == "mp3" else ["A book.m4b"]
    assert [file.name for file in reports[0].files] == names and all(file.made for file in reports[0].files)
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b"), "no date and no random number inside"
    assert "not used" not in caplog.text
    with av.open(str(tmp_path / "a" / names[0])) as file:
        assert (file.streams.audio[0].rate, file.streams.audio[0].channels) == (SAMPLE_RATE, 1)
        assert file.metadata["artist"] == "Nobody" and file.metadata["album"] == "A book"
        seconds = sum(frame.samples for frame in file.decode(audio=0)) / SAMPLE_RATE
        assert seconds == pytest.approx(reports[0].files[0].seconds, abs=0.2)
        marks = [(mark["metadata"]["title"], mark["start"] * mark["time_base"], mark["end"] * mark["time_base"])
                 for mark in file.chapters()]  # fmt: skip
    srt = (tmp_path / "a" / f"{names[0][:-4]}.srt").read_text(encoding="utf-8")
    if kind == "m4b":
        assert [title for title, *_ in marks] == ["One", "Two / 2?"]
        assert marks[0][2] == marks[1][1] == pytest.approx(4.5, abs=0.01) and marks[1][2] == pytest.approx(
            9.0, abs=0.01
        )
        assert "00:00:05,000 --> 00:00:06,000\nTwo / 2?\n" in srt
    again = narrate(Robot(), book, tmp_path / "a", voice, settings=BookSettings(kind=kind))
    assert not any(file.made for file in again.files)


@pytest.mark.parametrize("kind", ["flac", "m4b"])
@pytest.mark.parametrize("loudness", ["-16 LUFS", "ACX"])
def test_each_chapter_has_its_loudness(tmp_path, kind, loudness):
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book, voice = read_book_text(TEXT, "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    settings = BookSettings(kind=kind, loudness=loudness)
    report = narrate(Robot(), book, tmp_path / "a", voice, settings=settings)
    files = [tmp_path / "a" / file.name for file in report.files]
    for path in files:
        with av.open(str(path)) as file:
            parts = [torch.from_numpy(part.to_ndarray()).flatten() for part in file.decode(audio=0)]
        wav = torch.cat(parts)
        wav = wav.float() / (32768 if wav.dtype == torch.int16 else 1)
        if loudness == "ACX":
            assert 10 * math.log10(float(wav.square().mean())) == pytest.approx(-20, abs=0.3)
        else:
            assert integrated_loudness(wav) == pytest.approx(-16, abs=0.1 if kind == "flac" else 0.5)
        assert true_peak(wav[None], SAMPLE_RATE) < (-3 if loudness == "ACX" else -0.9)
    if kind == "flac":
        told = (
            r"dB RMS, true peak -\S+ dB, noise floor digital silence"
            if loudness == "ACX"
            else r"LUFS, true peak -\S+ dB"
        )
        assert all(re.fullmatch(rf"Loudness: -\d\d\.0 {told}\.", file.loudness) for file in report.files)
        assert str(report.files[0]).startswith("01 One.flac: ") and ", made. Loudness: -" in str(report.files[0])

    again = narrate(Robot(), book, tmp_path / "a", voice, settings=settings)
    assert not any(file.made for file in again.files)
    other = narrate(Robot(), book, tmp_path / "a", voice, settings=BookSettings(kind=kind))
    assert all(file.made for file in other.files), "as is"


def test_music_lies_under_each_chapter_from_its_start(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    book, voice = read_book_text(TEXT, "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}

    def chapters(folder, **given):
        report = narrate(Robot(), book, folder, voice, settings=BookSettings(**given))
        return report, [soundfile.read(folder / file.name, dtype="float32")[0] for file in report.files]

    _, dry = chapters(tmp_path / "dry")
    music = torch.full((1, 3 * SAMPLE_RATE), 0.1)
    report, mixed = chapters(tmp_path / "a", music=(music, 20.0))
    for with_music, without in zip(mixed, dry, strict=True):
        under = with_music - without
        assert under[0] == pytest.approx(0.1, abs=1e-3) and under[SAMPLE_RATE] == pytest.approx(0.01, abs=1e-3)
        assert abs(under[-1]) < 1e-3
    assert all(file.made for file in report.files)
    again, _ = chapters(tmp_path / "a", music=(music, 20.0))
    assert not any(file.made for file in again.files)
    for changed in ((music, 10.0), (music * 0.5, 10.0)):
        assert all(file.made for file in chapters(tmp_path / "a", music=changed)[0].files)
    _, loud = chapters(tmp_path / "b", music=(music, 20.0), loudness="-16 LUFS")
    assert integrated_loudness(torch.from_numpy(loud[0])) == pytest.approx(-16, abs=0.1)


@pytest.mark.parametrize("kind", ["m4b", "mp3", "flac"])
def test_players_find_details_and_cover(tmp_path, kind):
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    about = "author: Ann\nnarrator = Amber\nyear = 2026\n\nlanguage = en\ngenre = Novel\ndescription = A book. Long."
    book, voice = read_book_text(TEXT, "Book"), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    book = with_details(book, about, COVER)
    report = narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind))
    path = tmp_path / report.files[0].name
    with av.open(str(path)) as file:
        tags = {name.lower(): value for name, value in file.metadata.items()}
        assert (tags["artist"], tags["date"], tags["genre"], tags["comment"]) == (
            "Ann",
            "2026",
            "Novel",
            "A book. Long.",
        )
        if kind != "flac":
            assert (tags["composer"], tags["album_artist"]) == ("Amber", "Ann")
            (picture,) = file.streams.video
            assert picture.disposition == av.stream.Disposition.attached_pic
            assert bytes(next(file.demux(picture))) == COVER
        if kind == "m4b":
            assert file.metadata["major_brand"] == "M4B " and file.metadata["media_type"] == "2"
            assert file.streams.audio[0].metadata["language"] == "eng" and len(file.chapters()) == 2
    assert not any(
        file.made for file in narrate(Robot(), book, tmp_path, voice, settings=BookSettings(kind=kind)).files
    )
    other = with_details(book, "year = 2027")
    assert all(file.made for file in narrate(Robot(), other, tmp_path, voice, settings=BookSettings(kind=kind)).files)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("narrator Anna", "details has 'narrator Anna'"),
        ("price = 3", "details has 'price = 3'"),
        ("year = soon", "the year 'soon'"),
    ],
)
def test_details_that_nobody_knows_are_named(text, says):
    with pytest.raises(HiggsError, match=says):
        with_details(read_book_text(TEXT, "Book"), text)


@pytest.mark.parametrize("kind", ["flac", "mp3", "m4b"])
def test_half_an_emoji_stops_no_book(tmp_path, kind):
    """Text that a page cut inside an emoji reaches a node like this, and no file can hold it."""
    if kind != "flac":
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    book = read_book_text("# One \ud83d\n\nIt begins \ud83d here.", "Book \ud83d")
    book = with_details(book, "narrator = Anna \ud83d")
    robot, voice = Robot(), {"": Voice(torch.zeros(50, 8).long(), "A.")}
    report = narrate(robot, book, tmp_path, voice, settings=BookSettings(kind=kind, words=robot.words))
    assert [file.name for file in report.files] == ["Book.m4b" if kind == "m4b" else f"01 One.{kind}"]
    assert any("begins" in file.read_text(encoding="utf-8") for file in tmp_path.glob("*.srt"))


@pytest.mark.parametrize("cover", [b"", b"GIF89a", COVER[:40], COVER[:-20], b"\xff\xd8\xff and so on"])
def test_a_cover_that_cannot_be_read_is_refused_before_speech(cover):
    if cover[:1] in b"\xff\x89":
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    with pytest.raises(HiggsError, match="the cover cannot be read as a JPEG or PNG"):
        with_details(read_book_text(TEXT, "Book"), "", cover)


def test_chapters_are_left_out_by_their_numbers():
    book = read_book_text("# A\n\nOne.\n\n# B\n\nTwo.\n\n# C\n\nThree.\n\n# D\n\nFour.", "Book")
    kept = without_chapters(book, " 1, 3-4 ")
    assert [one.title for one in kept.chapters] == ["B"]
    assert kept.left_out == ("chapter 1 (A)", "chapter 3 (C)", "chapter 4 (D)")
    assert without_chapters(book, " ") is book
    for wrong in ("5", "0", "2-1", "x", "1-", "2-9"):
        with pytest.raises(HiggsError, match=r"leave_out has .* from 1 to 4"):
            without_chapters(book, wrong)
    with pytest.raises(HiggsError, match="every chapter"):
        without_chapters(book, "1-4")


def test_a_stop_changes_nothing_about_a_chapter_at_its_loudness(engine, tmp_path):
    book, settings = read_book_text(TEXT, "Book"), BookSettings(loudness="-16 LUFS")

    def stop(progress):
        if progress.share > 0.5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        narrate(engine, book, tmp_path / "b", params=PARAMS, settings=settings, on_progress=stop)
    narrate(engine, book, tmp_path / "b", params=PARAMS, settings=settings)
    narrate(engine, book, tmp_path / "a", params=PARAMS, settings=settings)
    assert made_in(tmp_path / "a") == made_in(tmp_path / "b")


def test_missing_pyav_is_reported_before_any_speech(tmp_path, monkeypatch):
    def missing(module, name):
        raise HiggsError("av has no usable open here: No module named 'av'.")

    monkeypatch.setattr(sound_file, "import_optional", missing)
    robot = Robot()
    with pytest.raises(HiggsError, match=r"mp3 files need PyAV, which comes with ComfyUI\. Install it"):
        narrate(robot, read_book_text(TEXT, "Book"), tmp_path, settings=BookSettings(kind="mp3"))
    assert robot.given == [] and list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(HiggsError, match="could not be written"):
        narrate(Robot(), read_book_text(TEXT, "Book"), tmp_path / "file", {"": Voice(torch.zeros(50, 8).long())})


NOISE = (8000 * np.random.default_rng(0).standard_normal(60_000)).clip(-32768, 32767).astype(np.int16)


def write_noise(path, open_file):
    file = open_file(path)
    try:
        file.write(NOISE)
    finally:
        file.close()


@pytest.mark.parametrize("kind", ["flac", "wav", "mp3", "m4b"])
@pytest.mark.parametrize("room", [0, 5000])
def test_a_full_disk_is_reported(tmp_path, full_disk, kind, room):
    """Also without crashing FFmpeg, which may crash if its header could not be written."""
    if kind in ("mp3", "m4b"):
        pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    with full_disk(room), pytest.raises(OSError):
        write_noise(tmp_path / "part", lambda path: open_sound(path, kind, Tags("One")))


@pytest.mark.parametrize("kind", ["flac", "wav", "mp3", "ogg"])
def test_errors_on_closing_a_file_are_reported(tmp_path, full_disk, kind):
    """libsndfile writes them when it closes, without reporting a failure."""

    def open_file(path):
        return BySoundfile(path, kind, Tags("One"))

    write_noise(tmp_path / "whole", open_file)
    for missing in (1, 100):
        with full_disk((tmp_path / "whole").stat().st_size - missing), pytest.raises(OSError):
            write_noise(tmp_path / "part", open_file)


def test_a_full_disk_is_reported_with_the_free_space(tmp_path, full_disk):
    with (
        full_disk(20_000),
        pytest.raises(HiggsError, match=r"01 One\.flac could not be written: .*\. (Only [1-9][0-9,]* [kM]B|No space)"),
    ):
        narrate(Robot(), read_book_text(TEXT, "Book"), tmp_path, {"": Voice(torch.zeros(50, 8).long())})
    assert not list(tmp_path.rglob("*.part"))


def test_a_damaged_list_counts_as_absent(tmp_path):
    voice = {"": Voice(torch.zeros(50, 8).long(), "A.")}
    narrate(Robot(), read_book_text(TEXT, "Book"), tmp_path, voice)
    before = made_in(tmp_path)
    (tmp_path / "book.json").write_text("{", encoding="utf-8")
    report = narrate(Robot(), read_book_text(TEXT, "Book"), tmp_path, voice)
    assert made_in(tmp_path) == before and any("book.json" in warning for warning in report.warnings)


class Forgetful(Robot):
    """A robot that loses the last word of each paragraph."""

    flaws = ()

    def speak_turns(self, *args, **given):
        speech, said = super().speak_turns(*args, **given), []
        for one in speech.said:
            doubt = Doubt("missing", one.text.split()[-1], (1, 2), (100, 100))
            found = Verdict("attention", (0,), (Passage((0, 1), (0, 100), (doubt,)),))
            said.append(replace(one, verdict=found, flaws=self.flaws))
        return replace(speech, said=tuple(said))


def test_doubts_at_the_ends_of_paragraphs_are_told_and_told_again(tmp_path):
    voice = {"": Voice(torch.zeros(50, 8).long(), "A.")}
    book = read_book_text("# One\n\nIt goes on.\n\nAnd on.\n\n# Two\n\nThe end.", "Book")
    first = narrate(Forgetful(), book, tmp_path, voice)
    told = [(chapter, doubt.text) for chapter, doubt in first.doubts]
    assert told == [("One", "One"), ("One", "on."), ("One", "on."), ("Two", "Two"), ("Two", "end.")]
    assert first.outcome == "Spoken to the end; 5 places are doubtful."
    again = narrate(Robot(), book, tmp_path, voice)
    assert not any(file.made for file in again.files)
    assert (again.doubts, again.outcome) == (first.doubts, first.outcome)
    told = [f"{chapter}: {doubt}" for chapter, doubt in first.doubts]
    assert again.messages[-len(told) :] == told


def test_speech_that_was_cut_is_told_and_told_again(tmp_path):
    voice, robot = {"": Voice(torch.zeros(50, 8).long(), "A.")}, Forgetful()
    robot.flaws = ("limit", "silence")
    book = read_book_text("It goes on.\n\nAnd on.", "Book")
    for speaker in (robot, Robot()):
        report = narrate(speaker, book, tmp_path, voice)
        assert report.outcome == "Cut off in 2 of 2 chunks."
        told = [str(doubt) for _, doubt in report.doubts]
        assert told[0] == 'At 0:00.5, the chunk "It goes on." falls silent.'
        assert told[2] == 'At 0:01.5, the chunk "It goes on." was cut off.' and len(told) == 6


_DAMAGED = [
    {"kind": kind, "text": "the end", "start": start, "end": 2.0} for kind, start in (("missing", "1"), ("lost", 1.0))
]


@pytest.mark.parametrize("note", [None, {}, *({"doubts": [one], "checked": []} for one in ([], {}, *_DAMAGED))])
def test_a_chapter_without_its_doubts_counts_as_not_checked(tmp_path, note):
    voice, book = {"": Voice(torch.zeros(50, 8).long(), "A.")}, read_book_text(TEXT, "Book")
    narrate(Robot(), book, tmp_path, voice)
    listed = json.loads((tmp_path / "book.json").read_text(encoding="utf-8"))
    for entry in listed["files"].values():
        entry["note"] = note
    (tmp_path / "book.json").write_text(json.dumps(listed), encoding="utf-8")
    report = narrate(Robot(), book, tmp_path, voice)
    assert not any(file.made for file in report.files) and report.doubts == ()
    assert report.outcome == "Spoken to the end, not checked."


@pytest.mark.parametrize("name", ["x" * 300, "/".join("x" * 600), "x" * 100_000])
def test_a_list_with_a_name_that_no_file_has_counts_as_absent(tmp_path, name):
    files = FileList(tmp_path, "book.json", "book")
    files.listed = {name: ("made of", 10)}
    files.write()
    read = FileList(tmp_path, "book.json", "book")
    assert read.listed == {} and "cannot be read" in read.damage and len(read.damage) < 500


def test_a_book_without_headings_is_one_chapter():
    book = read_book_text("Just a text.", "Note")
    assert isinstance(book, Book) and [(one.title, one.turns) for one in book.chapters] == [
        ("Note", (Turn("", "Just a text."),))
    ]
