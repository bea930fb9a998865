"""The list of voices, names saved on another machine, and where voices are saved."""

from __future__ import annotations

import pytest
from higgs_tts.engine import CLIP_SUFFIXES, FILM_SUFFIXES, HiggsError, transcript_of
from higgs_tts.engine.serve.voices import VoiceFolder


@pytest.fixture
def folders(load_module):
    return load_module("library.voice_folders")


def test_voices_with_and_without_a_transcript_are_listed(folders, library):
    names = list(folders.voices())
    assert names[:4] == ["a.mp3", "b.wav", "d.safetensors", "team/c.flac"]
    assert names[4:] and all(name.startswith("built-in/") and name.endswith(".flac") for name in names[4:])
    assert folders.find_voice("other\\C.flac") == library / "team" / "c.flac"
    assert transcript_of(library / "a.mp3") == ("said in a.reference.txt", "a.reference.txt")
    assert transcript_of(library / "b.wav") == ("said in b.txt", "b.txt")
    assert transcript_of(library / "team" / "c.flac") == ("", "")
    with pytest.raises(HiggsError, match=r"'e'.*found: a\.mp3, b\.wav"):
        folders.find_voice("e")


def test_clips_of_every_form_and_films_are_listed(folders, library):
    (library / "new").mkdir()
    for suffix in (*CLIP_SUFFIXES, *FILM_SUFFIXES, "2.MP4", ".txt", ".png", ".mid"):
        (library / "new" / f"of{suffix}").write_text("", encoding="utf-8")
    names = [name.removeprefix("new/of") for name in folders.voices() if name.startswith("new/")]
    assert sorted(names) == sorted([*CLIP_SUFFIXES, *FILM_SUFFIXES, "2.MP4"])
    assert folders.voice_called("new/of.m4a") == library / "new" / "of.m4a"


def test_a_voice_is_found_by_its_name_however_its_letters_are_written(folders, library):
    (library / "Zoe\u0308.wav").write_text("", encoding="utf-8")
    assert folders.voice_called("ZO\u00cb") == folders.voice_called("zoe\u0308") == library / "Zoe\u0308.wav"


def test_files_that_macos_leaves_are_no_voices(folders, library):
    (library / "._a.mp3").write_bytes(b"\x00\x05\x16\x07")
    assert "._a.mp3" not in folders.voices() and "a.mp3" in folders.voices()
    names = VoiceFolder(library).names()
    assert "._a" not in names and "a" in names


def test_linked_folders_are_searched_once(folders, library, tmp_path, link):
    elsewhere = tmp_path / "disk"
    (elsewhere / "more").mkdir(parents=True)
    (elsewhere / "more" / "eve.wav").write_text("eve", encoding="utf-8")
    link(library / "linked", elsewhere)
    link(elsewhere / "back", library)
    assert [name for name in folders.voices() if "eve" in name] == ["linked/more/eve.wav"]


def test_a_voice_name_never_finds_another_voice(folders, library):
    for name in ("cast", "team"):
        (library / name).mkdir(exist_ok=True)
        (library / name / "anna.wav").write_text(name, encoding="utf-8")
    assert folders.find_voice("team\\anna.wav") == library / "team" / "anna.wav"
    assert folders.find_voice("elsewhere/Cast/Anna.wav") == library / "cast" / "anna.wav"
    (library / "eve@home.wav").write_text("eve", encoding="utf-8")
    with pytest.raises(HiggsError, match=r"'eve@work\.wav'"):
        folders.find_voice("eve@work.wav")
    with pytest.raises(HiggsError, match=r"cast/anna\.wav.*team/anna\.wav"):
        folders.find_voice("other/anna.wav")


def test_built_in_voices_have_transcripts_and_replace_no_missing_voice(folders, library):
    built_in = [name for name in folders.voices() if name.startswith("built-in/")]
    for name in built_in:
        path = folders.find_voice(name)
        assert folders.find_voice(name.replace("/", "\\")) == path
        assert len(transcript_of(path)[0].split()) > 8 and path.stat().st_size <= 250_000
        with pytest.raises(HiggsError, match=f"'{path.name}'"):
            folders.find_voice(path.name)  # somebody's own of that name, which is not here


def test_uploaded_clips_can_be_chosen_but_not_matched_by_name(folders, library, tmp_path):
    (tmp_path / "input" / "sub").mkdir(parents=True)
    for name in ("me.wav", "sub/You.MP3", "b.wav", "film.mp4", "photo.png"):
        (tmp_path / "input" / name).write_text(name, encoding="utf-8")
    assert [name for name in folders.choices() if name not in folders.voices()] == [
        "input/b.wav", "input/me.wav", "input/sub/You.MP3",
    ]  # fmt: skip
    assert folders.find_voice("input/me.wav") == tmp_path / "input" / "me.wav"
    assert folders.find_voice("input\\b.wav") == tmp_path / "input" / "b.wav"
    assert folders.find_voice("b.wav") == library / "b.wav" and folders.voice_called("me") is None
    for name in ("me.wav", "input/gone.wav"):
        with pytest.raises(HiggsError, match=f"there is no voice '{name}'.*upload one"):
            folders.find_voice(name)


def test_a_voice_is_saved_inside_its_folder(folders, tmp_path):
    root = tmp_path / "models" / "voices"
    assert folders.voice_target(" anna ") == root / "anna.safetensors"
    assert folders.voice_target("team\\anna.safetensors") == root / "team" / "anna.safetensors"
    assert folders.voice_target("v1.5") == root / "v1.5.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "/",
        "../x",
        "a/../b",
        "a//b",
        "C:/x",
        "a\0b",
        ".safetensors",
        "a\tb",
        "con",
        "team/NUL.x",
        "a.",
        "x" * 300,
    ],
)
def test_names_that_lead_outside_the_folder_are_refused(folders, name):
    with pytest.raises(HiggsError, match="voice name"):
        folders.voice_target(name)


@pytest.mark.parametrize("name", [0, True, None, [], {"name": "anna"}])
@pytest.mark.parametrize(
    "finder", ["voice_folders.find_voice", "lora_folders.find_lora", "checkpoint_folders.find_checkpoint"]
)
def test_a_name_that_is_no_string_is_refused_in_a_sentence(load_module, finder, name):
    module, _, find = finder.partition(".")
    with pytest.raises(HiggsError, match="It must be a string"):
        getattr(load_module(f"library.{module}"), find)(name)


@pytest.mark.parametrize("value", [0, 2.5, True, [], ["a"], {"name": "anna"}, "", "\u3000" * 80, "\U000e0001" * 80])
@pytest.mark.parametrize(
    ("node", "field"),
    [
        ("voice_files.HiggsTTSLoadVoice", "voice"),
        ("lora.HiggsTTSLoadLoRA", "name"),
        ("load.HiggsTTSLoadModel", "model"),
        ("transcribe.HiggsTTSTranscribe", "whisper"),
        ("book.HiggsTTSBook", "book"),
    ],
)
def test_a_literal_that_is_no_choice_is_refused_in_a_sentence(load_module, node, field, value):
    module, _, kind = node.partition(".")
    try:
        told = getattr(load_module(module), kind).validate_inputs(**{field: value})
    except HiggsError as error:  # told once, where ComfyUI would repeat a returned sentence for each input
        told = str(error)
    assert isinstance(told, str) and len(told) < 1000 and "\n" not in told
