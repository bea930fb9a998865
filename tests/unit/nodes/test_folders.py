"""Which folders are searched, and that a name saved on one machine is found on another."""

from __future__ import annotations

import json

import pytest
from higgs_tts.engine import DOWNLOADS, EMBEDDED, EMBEDDED_NAME, HiggsError

V3 = "higgs_multimodal_qwen3"


def make_checkpoint(folder, whole=True, kind=V3):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    for name in ("tokenizer.json", "model.safetensors") if whole else ():
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def folders(room):
    return room("folders")


def test_what_the_yaml_names_comes_first_and_only_weights_are_listed(folders, comfy, tmp_path):
    paths, extensions = comfy["folder_paths"].folder_names_and_paths["higgs_tts"]
    assert paths == [str(tmp_path / "disk"), str(tmp_path / "models" / "higgs_tts")]
    assert extensions == {".safetensors", ".pth"}
    assert folders.download_root() == tmp_path / "disk"


def test_every_home_is_searched_and_what_works_comes_first(folders, tmp_path):
    make_checkpoint(tmp_path / "disk" / "a-half", whole=False)
    make_checkpoint(tmp_path / "disk" / "b")
    for index, home in enumerate(["higgs_tts", "TTS/boson", "tts", "higgsv3tts", "higgs_audio"]):
        make_checkpoint(tmp_path / "models" / home / f"c{index}")
    names = folders.choices()
    assert names[:9] == ["auto", "b", "boson/c1", "c0", "c2", "c3", "c4", EMBEDDED_NAME, "a-half"]
    assert names[9:] == [f"download: {label}" for label in DOWNLOADS]


def test_a_folder_under_two_names_is_searched_once(folders, tmp_path):
    make_checkpoint(tmp_path / "models" / "TTS" / "a")
    (tmp_path / "models" / "tts").symlink_to(tmp_path / "models" / "TTS")
    assert len(folders.model_roots()) == 1 and list(folders.checkpoints()) == ["a", EMBEDDED_NAME]


def test_a_fresh_install_speaks_before_any_download(folders):
    assert folders.choices()[:2] == ["auto", EMBEDDED_NAME]
    assert folders.find("auto") == folders.find(EMBEDDED_NAME) and folders.find("auto").path == EMBEDDED


def test_auto_takes_the_best_that_is_here(folders, tmp_path):
    """v3 before v2 before the embedded one, a published name before others, then by name; never half a download."""
    disk, other = tmp_path / "disk", tmp_path / "models" / "TTS"
    order = [(disk / "aa-v2", "higgs_audio_v2"), (other / "higgs-tts-2-3b-base", "higgs_audio_v2")]
    order += [(disk / "b-v3", V3), (disk / "a-v3", V3), (other / "higgs-audio-v3-tts-4b", V3)]
    make_checkpoint(disk / "0-half", whole=False)
    for folder, kind in order:
        make_checkpoint(folder, kind=kind)
        assert folders.find("auto").path == folder
    assert folders.find("auto").name == "higgs-audio-v3-tts-4b"


def test_a_whole_checkpoint_has_its_name_before_a_half_one(folders, tmp_path):
    name = DOWNLOADS[next(iter(DOWNLOADS))].talker.id
    make_checkpoint(tmp_path / "models" / "TTS" / name, whole=False)
    cached = make_checkpoint(tmp_path / "hf" / f"models--{name.replace('/', '--')}" / "snapshots" / ("f" * 40))
    assert folders.find(name).path == cached


@pytest.mark.parametrize(
    "saved", ["boson/Higgs-3", "higgs-3", "TTS\\other\\Higgs-3", "org/higgs-3@7556c17", "Higgs-3/"]
)
def test_names_from_other_machines(folders, tmp_path, saved):
    here = make_checkpoint(tmp_path / "models" / "TTS" / "boson" / "Higgs-3")
    assert folders.find(saved).path == here


def test_what_is_missing_is_told(folders, tmp_path):
    with pytest.raises(HiggsError, match=r"'gone'.*found: embedded.*'auto'.*'embedded.*download: "):
        folders.find("gone")
    make_checkpoint(tmp_path / "disk" / "half", whole=False)
    with pytest.raises(HiggsError, match=r"not complete.*tokenizer\.json"):
        folders.find("half")


def test_a_replaced_file_changes_the_stamp(folders, tmp_path):
    folder = make_checkpoint(tmp_path / "disk" / "a")
    before = folders.stamp(folder)
    assert json.loads(json.dumps(before)) == folders.stamp(folder)
    (folder / "model.safetensors").write_text("other")
    assert folders.stamp(folder) != before


@pytest.fixture
def library(folders, tmp_path):
    root = tmp_path / "models" / "voices"
    (root / "team").mkdir(parents=True)
    for name in ("b.wav", "a.mp3", "team/c.flac", "d.safetensors", "b.txt", "a.txt", "a.reference.txt", "notes.md"):
        (root / name).write_text(f"said in {name}")
    return root


def test_voices_with_and_without_a_transcript_are_listed(folders, library):
    names = list(folders.voices())
    assert names[:4] == ["a.mp3", "b.wav", "d.safetensors", "team/c.flac"]
    assert names[4:] and all(name.startswith("built-in/") and name.endswith(".flac") for name in names[4:])
    assert folders.find_voice("other\\C.flac") == library / "team" / "c.flac"
    assert folders.transcript_of(library / "a.mp3") == ("said in a.reference.txt", "a.reference.txt")
    assert folders.transcript_of(library / "b.wav") == ("said in b.txt", "b.txt")
    assert folders.transcript_of(library / "team" / "c.flac") == ("", "")
    with pytest.raises(HiggsError, match=r"'e'.*found: a\.mp3, b\.wav"):
        folders.find_voice("e")


def test_nobody_speaks_with_another_s_voice(folders, library):
    for name in ("cast", "team"):
        (library / name).mkdir(exist_ok=True)
        (library / name / "anna.wav").write_text(name)
    assert folders.find_voice("team\\anna.wav") == library / "team" / "anna.wav"
    assert folders.find_voice("elsewhere/Cast/Anna.wav") == library / "cast" / "anna.wav"
    (library / "eve@home.wav").write_text("eve")
    with pytest.raises(HiggsError, match=r"no voice 'eve@work\.wav'"):
        folders.find_voice("eve@work.wav")
    with pytest.raises(HiggsError, match=r"could be cast/anna\.wav or team/anna\.wav"):
        folders.find_voice("other/anna.wav")


def test_the_voices_of_the_pack_have_transcripts_and_stand_in_for_nobody(folders, library):
    shipped = [name for name in folders.voices() if name.startswith("built-in/")]
    for name in shipped:
        path = folders.find_voice(name)
        assert folders.find_voice(name.replace("/", "\\")) == path
        assert len(folders.transcript_of(path)[0].split()) > 8 and path.stat().st_size <= 250_000
        with pytest.raises(HiggsError, match="there is no voice"):
            folders.find_voice(path.name)  # somebody's own of that name, which is not here


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_transcripts_are_read_as_editors_save_them(folders, library, encoding):
    (library / "b.txt").write_bytes("Grüße, sagte er.\n".encode(encoding))
    assert folders.transcript_of(library / "b.wav") == ("Grüße, sagte er.", "b.txt")


def test_a_voice_is_saved_below_its_folder(folders, tmp_path):
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
def test_names_that_lead_elsewhere_are_refused(folders, name):
    with pytest.raises(HiggsError, match=r"is not a valid voice name"):
        folders.voice_target(name)
