"""Names for files: one rule for nodes, books' folders and the server."""

import unicodedata

import pytest
import torch
from higgs_tts.engine import HiggsError, Voice, portable_parts

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.serve.calls import BadCall
from higgs_tts.engine.serve.voices import VoiceFolder

VOICE = Voice(torch.zeros((25, 8), dtype=torch.long), "Words.", "")
BAD = [
    "CON",
    "nul",
    "conin$",
    "CONOUT$.wav",
    "Com1.wav",
    "COM1 .x",
    "LPT\u00b9",
    "",
    ".",
    "..",
    "a.",
    "a ",
    " a",
    ".a",
    "a:b",
    "a?",
    "a\nb",
    "a\0",
    "x" * 201,
]
GOOD = ["anna", "Anna 2", "Zo\u00e9", "\u9752\u5c71", "CONrad", "com", "a.b", "O'Neil, J. (old)"]


@pytest.mark.parametrize("name", BAD)
def test_names_that_some_system_cannot_have_are_refused_everywhere(tmp_path, name):
    assert portable_parts(name) == portable_parts(f"folder/{name}") == []
    with pytest.raises(BadCall, match="a voice name") as refused:
        VoiceFolder(tmp_path).add(name, VOICE)
    assert refused.value.param == "name" and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["a/b", "a\\b", "../a", "x" * 65])
def test_a_voice_of_the_server_has_no_folder_and_at_most_64_letters(tmp_path, name):
    with pytest.raises(BadCall, match="a voice name"):
        VoiceFolder(tmp_path).add(name, VOICE)


@pytest.mark.parametrize("name", GOOD)
def test_composed_and_decomposed_names_are_the_same(tmp_path, name):
    folder, apart = VoiceFolder(tmp_path), unicodedata.normalize("NFD", name)
    assert portable_parts(apart) == portable_parts(name) == [name]
    assert folder.add(apart, VOICE) == name and [path.stem for path in tmp_path.iterdir()] == [name]
    assert folder.find(name) == folder.find(apart)
    with pytest.raises(HiggsError, match="already exists"):
        folder.add(name, VOICE)
    folder.delete(apart)
    assert not [*tmp_path.iterdir()]
