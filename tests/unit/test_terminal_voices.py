"""Voices as they are named in the terminal: built-in ones, and paths."""

import os
import shutil
import sys

import numpy as np
import pytest
import soundfile
from higgs_tts.engine import BUILT_IN_CLIPS, Voice, read_plain_text
from higgs_tts.engine.terminal import main

BUILT_IN = sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))
FORMS = {"Amber": "amber", "built-in/amber.flac": "amber", "built-in\\Oliver.flac": "oliver", "RUTH.flac": "ruth"}
SHORT = ("--max-frames", "12", "--retries", "0", "--no-check")


@pytest.fixture
def run(written):
    """run(*arguments) -> the exit status of a command with the tiny checkpoint."""
    return lambda *given: main([*given, "--model", str(written["v3"]), "--device", "cpu"])


def made(run, tmp_path, name, *more):
    out = tmp_path / "made.safetensors"
    assert run("voice", str(name), "--out", str(out), *more) == 0
    return Voice.load(out)


@pytest.mark.parametrize("name", [*BUILT_IN, *FORMS])
def test_built_in_voices_have_their_names_and_words(run, name, tmp_path, capsys):
    stem = FORMS.get(name, name)
    voice = made(run, tmp_path, name)
    assert voice.transcript == read_plain_text(BUILT_IN_CLIPS / f"{stem}.txt")[0].strip() and voice.name == stem
    assert "warning" not in capsys.readouterr().err


def test_a_file_comes_before_a_built_in_voice(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(BUILT_IN_CLIPS / "oliver.flac", "amber")
    own = made(run, tmp_path, "amber")
    assert "cloning works less well without a --transcript" in capsys.readouterr().err
    assert own.codes.equal(made(run, tmp_path, BUILT_IN_CLIPS / "oliver.flac").codes) and own.transcript is None


def test_the_words_of_a_clip_are_read_beside_it_unless_given(run, tmp_path):
    shutil.copy(BUILT_IN_CLIPS / "sky.flac", tmp_path / "a.flac")
    (tmp_path / "a.txt").write_text("Words of a.", encoding="utf-8")
    assert made(run, tmp_path, tmp_path / "a.flac").transcript == "Words of a."
    assert made(run, tmp_path, tmp_path / "a.flac", "--transcript", "Other words.").transcript == "Other words."


def test_a_clip_that_is_no_voice_is_named(run, tmp_path, capsys):
    soundfile.write(tmp_path / "b.wav", np.zeros(48_000), 24_000)
    (tmp_path / "a.txt").write_text("Anna = amber\nTom = b.wav\n\nAnna: Hi.\nTom: Hi.", encoding="utf-8")
    assert run("say", "--script", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a.wav")) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"error: {tmp_path / 'b.wav'}: The reference clip is silent. Use a clip with audible speech."


@pytest.mark.skipif(sys.platform != "linux", reason="Windows and macOS have no such names")
def test_names_that_are_not_utf_8_are_read_but_for_folders_of_books(run, tmp_path, capsys):
    """As archives from Windows leave them on Linux."""
    odd = os.fsdecode(b"M\xfcller")
    shutil.copy(BUILT_IN_CLIPS / "amber.flac", clip := tmp_path / f"{odd}.flac")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / f"{odd}.txt").write_text("Hi.", encoding="utf-8")
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nHi.\n", encoding="utf-8")
    out = str(tmp_path / "a.wav")
    assert run("say", "Hi.", "--voice", str(clip), "--out", out, *SHORT) == 0
    assert run("say", "--srt-in", str(tmp_path / "a.srt"), "--bed", str(clip), "--out", out, *SHORT) == 0
    assert run("narrate", str(tmp_path / "books"), "--out", str(tmp_path / "out"), *SHORT) == 0
    assert [path.suffix for path in (tmp_path / "out" / "Mller").glob("0*")] == [".flac", ".srt"]
    assert run("narrate", str(tmp_path / "books" / f"{odd}.txt"), "--out", str(tmp_path / odd), *SHORT) == 2
    assert "is not UTF-8. Rename it, or choose another folder." in capsys.readouterr().err
    assert not (tmp_path / odd).exists()


def test_a_saved_voice_is_read_whatever_the_case_of_its_suffix(run, tmp_path, capsys):
    voice, out = str(tmp_path / "V.SAFETENSORS"), str(tmp_path / "a.wav")
    assert run("voice", "amber", "--out", voice) == 0
    assert run("say", "Hi.", "--voice", voice, "--out", out, *SHORT) == 0
    assert run("say", "Hi.", "--voice", voice, "--transcript", "Hi.", "--out", out) == 2
    assert "is a saved voice that has its own transcript" in capsys.readouterr().err


def test_an_unknown_voice_is_told_of_both_ways(run, tmp_path, capsys):
    for command in (["say", "Hi."], ["narrate", str(tmp_path / "a.txt")]):
        (tmp_path / "a.txt").write_text("Hi.", encoding="utf-8")
        assert run(*command, "--voice", "ambre", "--out", str(tmp_path / f"{command[0]}.wav")) == 2
        told = capsys.readouterr().err.splitlines()[-1]
        assert told == (
            "error: There is no file ambre, and no built-in voice of that name. Give the path of a clip or a saved "
            f"voice, or one of: {', '.join(BUILT_IN)}."
        )


def test_texts_scripts_books_and_subtitles_speak_with_built_in_voices(run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Ann = amber\nBen = Oliver\n\nAnn: Hello.\nBen: Good day.\n", encoding="utf-8")
    (tmp_path / "a.srt").write_text("Ann = amber\n\n1\n00:00:00,000 --> 00:00:02,000\nAnn: Hello.\n", encoding="utf-8")
    text, srt, out = str(tmp_path / "a.txt"), str(tmp_path / "a.srt"), str(tmp_path / "a.wav")
    assert run("say", "Hello.", "--voice", "amber", "--out", out, *SHORT) == 0
    assert run("say", "--script", text, "--out", out, *SHORT) == 0
    assert run("narrate", text, "--script", "--out", str(tmp_path / "book"), *SHORT) == 0
    assert run("say", "--srt-in", srt, "--out", out, *SHORT) == 0
    (tmp_path / "a.txt").write_text("Ann = ambre\n\nAnn: Hello.\n", encoding="utf-8")
    assert run("say", "--script", text, "--out", out, *SHORT) == 2
    assert f"There is no file {tmp_path / 'ambre'}, and no built-in" in capsys.readouterr().err
