"""What is said in a clip is read from the text file beside it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_transcripts_are_read_as_editors_save_them(load_module, library, encoding):
    (library / "b.txt").write_bytes("Grüße, sagte er.\n".encode(encoding))
    assert load_module("library.transcripts").transcript_of(library / "b.wav") == ("Grüße, sagte er.", "b.txt")
