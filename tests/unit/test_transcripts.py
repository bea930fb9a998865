"""A clip's transcript is read from the text file beside it."""

from __future__ import annotations

import pytest
from higgs_tts.engine import HiggsError, transcript_of
from higgs_tts.engine.files.plain_text import tell
from higgs_tts.engine.serve.voices import VoiceFolder


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_transcripts_are_read_as_editors_save_them(tmp_path, encoding):
    (tmp_path / "b.txt").write_bytes("Grüße, sagte er.\n".encode(encoding))
    assert transcript_of(tmp_path / "b.wav") == ("Grüße, sagte er.", "b.txt")


def test_the_server_s_clips_have_the_nodes_transcripts(tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"")
    (tmp_path / "anna.txt").write_text("Notes on Anna.")
    (tmp_path / "anna.reference.txt").write_text("Hello, I am Anna.")
    assert transcript_of(VoiceFolder(tmp_path).find("Anna")) == ("Hello, I am Anna.", "anna.reference.txt")


def test_an_overlong_transcript_is_named(tmp_path):
    with (tmp_path / "b.txt").open("wb") as file:
        file.truncate((8 << 20) + 1)
    with pytest.raises(HiggsError, match=r"b\.txt cannot be read .*at most 8 MB"):
        transcript_of(tmp_path / "b.wav")


@pytest.mark.parametrize(
    ("encoding", "words", "name"),
    [
        ("cp932", "古い橋は春に閉鎖されました。", "Shift-JIS"),
        ("cp1251", "Старый мост закрыли весной.", "Windows-1251"),
        ("utf-16-le", "The old bridge is closed.", ""),
    ],
)
def test_a_transcript_may_have_any_encoding_and_a_guess_is_logged(tmp_path, encoding, words, name, caplog):
    tell.cache_clear()
    (tmp_path / "anna.txt").write_bytes(words.encode(encoding))
    assert transcript_of(tmp_path / "anna.wav") == (words, "anna.txt")
    told = [record.message for record in caplog.records]
    assert len(told) == bool(name) and all(f"anna.txt is not UTF-8 and was read as {name} (" in one for one in told)
