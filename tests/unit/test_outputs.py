"""The outputs of `say`: complete or absent, in the format of the suffix."""

import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, SpeechResult, SpokenTurn
from higgs_tts.engine.__main__ import main

SECONDS = 2
WAV = 0.2 * torch.randn(SECONDS * SAMPLE_RATE, generator=torch.Generator().manual_seed(0))
SPEECH = SpeechResult(
    WAV, torch.zeros(50, 8, dtype=torch.int64), 0.1, 1, "end of speech", said=(SpokenTurn("", "Hello.", 0, len(WAV)),)
)


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """say(*options, before) -> (exit code, stderr without the bar). before() is called during speech."""

    def run(*options, before=lambda: None, out="a.wav"):
        def speak(*args, listener, **given):
            before()
            return SPEECH

        monkeypatch.setattr(Engine, "speak", speak)
        command = ["say", "Hello.", "--model", str(EMBEDDED), "--device", "cpu", "--out", str(tmp_path / "made" / out)]
        code = main([*command, *(str(option) for option in options)])
        return code, [line for line in capsys.readouterr().err.splitlines() if "speaking" not in line and line]

    return run


@pytest.fixture
def made(tmp_path):
    """Map the names of existing files to their bytes."""
    return lambda: {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir() if path.is_file()}


def test_a_full_disk_keeps_earlier_files(say, made, tmp_path, full_disk):
    beside = ["--codes", tmp_path / "made" / "a.npy", "--srt-out", tmp_path / "made" / "a.srt"]
    assert say(*beside)[0] == 0
    before = made()
    assert before.keys() == {"a.wav", "a.npy", "a.srt"} and b"Hello." in before["a.srt"]
    assert soundfile.info(tmp_path / "made" / "a.wav").duration == SECONDS
    assert np.array_equal(np.load(tmp_path / "made" / "a.npy"), SPEECH.codes.numpy())
    for room, file in ((0, "a.srt"), (1000, "a.npy"), (20_000, "a.wav")):
        with full_disk(room):
            code, told = say(*beside)
        assert code == 2 and len(told) == 1 and f"{file} could not be written: " in told[0] and "free there" in told[0]
        assert made() == before


def test_a_vanished_folder_is_made_again(say, made, tmp_path):
    assert say(before=(tmp_path / "made").rmdir) == (0, []) and made().keys() == {"a.wav"}


def test_a_folder_of_the_output_s_name_is_refused_and_nothing_replaced(say, made, tmp_path):
    beside = ["--srt-out", tmp_path / "made" / "a.srt"]
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.srt").write_text("earlier", encoding="utf-8")
    code, told = say(*beside, before=(tmp_path / "made" / "a.wav").mkdir)
    assert code == 2 and len(told) == 1 and "a.wav could not be written: " in told[0]
    assert made() == {"a.srt": b"earlier"}


def test_half_an_emoji_is_left_out_of_subtitles(say, made, tmp_path, monkeypatch):
    said = (SpokenTurn("", "Hello \ud83d.", 0, len(WAV)),)
    monkeypatch.setattr(sys.modules[__name__], "SPEECH", replace(SPEECH, said=said))
    assert say("--srt-out", tmp_path / "made" / "a.srt") == (0, [])
    assert b"Hello" in made()["a.srt"]


@pytest.mark.parametrize("options", [["--voice", "a.wav"], ["--words", "./x.json", "--mouth", "x.json"]])
def test_a_file_that_is_named_twice_is_refused_and_kept(say, tmp_path, monkeypatch, options):
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    (tmp_path / "made" / "a.wav").write_bytes(b"a clip")
    code, told = say(*options)
    assert code == 2 and told[-1].endswith(" is named twice, and would be overwritten. Give another name.")
    assert [path.read_bytes() for path in (tmp_path / "made").iterdir()] == [b"a clip"]


def test_a_pipe_or_a_folder_of_the_output_s_name_is_refused_before_speech(say, tmp_path, make_pipe):
    (tmp_path / "made").mkdir()
    make_pipe(out := tmp_path / "made" / "a.wav")
    code, told = say(before=lambda: pytest.fail("it speaks"))
    assert code == 2 and told[-1] == f"error: {out} exists and is not a file. Give another name."


@pytest.mark.skipif(sys.platform == "win32", reason="Windows makes no link here")
def test_a_link_that_leads_nowhere_leaves_no_empty_file(say, made, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.wav").symlink_to(tmp_path / "made" / "b.wav")
    assert say() == (0, []) and made().keys() == {"a.wav"}


def test_a_place_that_cannot_be_written_to_is_not_called_full(say, tmp_path, monkeypatch):
    """Images and write-protected cards have no space left, but none would help."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    (tmp_path / "made").write_text("a file in the folder's place", encoding="utf-8")
    code, told = say()
    assert code == 2 and "made" in told[-1] and ". Choose a folder you can write to, and close programs" in told[-1]


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg"])
def test_the_file_name_decides_the_format(say, tmp_path, kind):
    assert say(out=f"a.{kind}") == (0, [])
    found = soundfile.info(tmp_path / "made" / f"a.{kind}")
    assert found.format == kind.upper() and found.samplerate == SAMPLE_RATE and found.channels == 1
    assert found.duration == pytest.approx(SECONDS, abs=0.1)


def test_sound_that_a_format_cannot_hold_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Engine, "speak_turns", None)
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nHello.\n", encoding="utf-8")
    soundfile.write(tmp_path / "bed.wav", np.zeros((96_000, 4)), 96_000)
    command = ["say", "--srt-in", tmp_path / "a.srt", "--bed", tmp_path / "bed.wav", "--out", tmp_path / "a.mp3"]
    assert main([str(part) for part in command]) == 2
    err = capsys.readouterr().err
    assert "a.mp3 cannot be written at 96000 Hz with 4 channels" in err and ".wav" in err
