"""Folders searched for checkpoints, and names saved on another machine."""

from __future__ import annotations

import json

import pytest
from higgs_tts.engine import DOWNLOADS, EMBEDDED, EMBEDDED_NAME, HiggsError
from higgs_tts.tests.gguf_files import Q8_0, write_gguf

V3 = "higgs_multimodal_qwen3"


def make_checkpoint(folder, whole=True, kind=V3):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    for name in ("tokenizer.json", "model.safetensors") if whole else ():
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def folders(load_module):
    return load_module("library.checkpoint_folders")


def test_folders_of_the_yaml_come_first_and_only_weights_are_listed(folders, comfy, tmp_path):
    paths, extensions = comfy["folder_paths"].folder_names_and_paths["higgs_tts"]
    assert paths == [str(tmp_path / "disk"), str(tmp_path / "models" / "higgs_tts")]
    assert extensions == {".safetensors", ".pth"}
    assert folders.download_root() == tmp_path / "disk"


def test_every_folder_is_searched_and_working_checkpoints_come_first(folders, tmp_path):
    make_checkpoint(tmp_path / "disk" / "a-half", whole=False)
    make_checkpoint(tmp_path / "disk" / "b")
    for index, name in enumerate(["higgs_tts", "TTS/boson", "tts", "higgsv3tts", "higgs_audio"]):
        make_checkpoint(tmp_path / "models" / name / f"c{index}")
    names = folders.choices()
    assert names[:9] == ["auto", "b", "boson/c1", "c0", "c2", "c3", "c4", EMBEDDED_NAME, "a-half"]
    assert names[9:] == [f"download: {label}" for label in DOWNLOADS]


def test_a_folder_with_two_names_is_searched_once(folders, tmp_path, link):
    make_checkpoint(tmp_path / "models" / "TTS" / "a")
    if not (tmp_path / "models" / "tts").exists():  # on Windows it is the same
        link(tmp_path / "models" / "tts", tmp_path / "models" / "TTS")
    assert len(folders.model_roots()) == 1 and list(folders.checkpoints()) == ["a", EMBEDDED_NAME]


def test_a_fresh_install_speaks_before_any_download(folders):
    assert folders.choices()[:2] == ["auto", EMBEDDED_NAME]
    found = folders.find_checkpoint("auto")
    assert found == folders.find_checkpoint(EMBEDDED_NAME) and found.path == EMBEDDED


def test_auto_picks_the_best_checkpoint_on_disk(folders, tmp_path):
    """v3 before v2 before the embedded one, a published name before others, then by name; never a partial download."""
    disk, other = tmp_path / "disk", tmp_path / "models" / "TTS"
    order = [(disk / "aa-v2", "higgs_audio_v2"), (other / "higgs-tts-2-3b-base", "higgs_audio_v2")]
    order += [(disk / "b-v3", V3), (disk / "a-v3", V3), (other / "higgs-audio-v3-tts-4b", V3)]
    make_checkpoint(disk / "0-half", whole=False)
    for folder, kind in order:
        make_checkpoint(folder, kind=kind)
        assert folders.find_checkpoint("auto").path == folder
    assert folders.find_checkpoint("auto").name == "higgs-audio-v3-tts-4b"


def test_a_whole_checkpoint_is_preferred_to_an_incomplete_one(folders, tmp_path):
    name = DOWNLOADS[next(iter(DOWNLOADS))].talker.id
    make_checkpoint(tmp_path / "models" / "TTS" / name, whole=False)
    cached = make_checkpoint(tmp_path / "hf" / f"models--{name.replace('/', '--')}" / "snapshots" / ("f" * 40))
    assert folders.find_checkpoint(name).path == cached


@pytest.mark.parametrize(
    "saved", ["boson/Higgs-3", "higgs-3", "TTS\\other\\Higgs-3", "org/higgs-3@7556c17", "Higgs-3/"]
)
def test_names_saved_on_other_machines_are_found(folders, tmp_path, saved):
    here = make_checkpoint(tmp_path / "models" / "TTS" / "boson" / "Higgs-3")
    assert folders.find_checkpoint(saved).path == here


def test_errors_name_the_missing_file(folders, tmp_path):
    with pytest.raises(HiggsError, match=r"'gone'.*'auto'.*'embedded.*download: "):
        folders.find_checkpoint("gone")
    make_checkpoint(tmp_path / "disk" / "half", whole=False)
    with pytest.raises(HiggsError, match=r"tokenizer\.json"):
        folders.find_checkpoint("half")


def test_a_replaced_file_changes_the_fingerprint(folders, tmp_path):
    folder = make_checkpoint(tmp_path / "disk" / "a")
    before = folders.fingerprint(folder)
    assert json.loads(json.dumps(before)) == folders.fingerprint(folder)
    (folder / "model.safetensors").write_text("other")
    assert folders.fingerprint(folder) != before


def test_each_gguf_file_can_be_chosen(load_module, tmp_path):
    path = tmp_path / "disk" / "higgs-gguf" / "higgs_q8_0.gguf"
    write_gguf(EMBEDDED, path, Q8_0)
    folders = load_module("library.checkpoint_folders")
    assert "higgs-gguf/higgs_q8_0.gguf" in folders.choices()
    found = folders.find_checkpoint("elsewhere/higgs_q8_0.gguf")
    assert found.path == path and folders.fingerprint(path) == [
        [path.name, path.stat().st_size, path.stat().st_mtime_ns]
    ]
    patcher = load_module("load").HiggsTTSLoadModel.execute(found.name, device="cpu").args[0]
    assert patcher.engine.config.dtype == "int8" and patcher.model.label == found.name
