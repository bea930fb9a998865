"""Subtitles and lists of pronunciations from files: errors name what is not a file, or too large."""

import os

import pytest
from higgs_tts.engine import Pronunciations
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.tools.text_files import dialogue_in, pronunciations_in


@pytest.mark.parametrize("option", [["--srt-in"], ["Hello.", "--pronunciations"]])
def test_files_that_are_no_text_are_refused(tmp_path, option, capsys):
    os.mkfifo(tmp_path / "pipe.txt")  # reading it would never end
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate((8 << 20) + 1)
    for name, told in (
        ("pipe.txt", "it is not a file"),
        ("zero\0byte.txt", "No such file"),
        ("large.txt", "at most 8 MB can be read"),
        ("", "it is not a file"),
    ):
        assert main(["say", "--out", str(tmp_path / "a.wav"), *option, str(tmp_path / name)]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {tmp_path / name} cannot be read") and told in error


def test_windows_line_ends_are_read(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfNguyen = Win\r\nLeicester = Lester\r\n")
    assert pronunciations_in(tmp_path / "list.txt").apply("Nguyen in Leicester") == "Win in Lester"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_a_script_may_have_any_encoding(tmp_path, encoding):
    (tmp_path / "script.txt").write_bytes("Anna: Grüße!\r\nTom: Hallo.\r\n".encode(encoding))
    dialogue = dialogue_in(tmp_path / "script.txt", Pronunciations(), knows_tag=lambda tag: True)
    assert [(turn.speaker, turn.text) for turn in dialogue.turns] == [("Anna", "Grüße!"), ("Tom", "Hallo.")]
    assert any("read as Windows-1252" in warning for warning in dialogue.warnings) == (encoding == "cp1252")
