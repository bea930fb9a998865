"""Finding and downloading checkpoint folders. Needs no network: the call into huggingface_hub is replaced."""

import json
import os
import pathlib
import shutil

import pytest
import torch
from higgs_tts.engine.checkpoint import discover, download
from higgs_tts.engine.checkpoint.catalog import DOWNLOADS
from higgs_tts.engine.checkpoint.discover import cached_snapshots, constants, find_checkpoints, find_in_hf_cache
from higgs_tts.engine.checkpoint.download import download_checkpoint
from higgs_tts.engine.checkpoint.hf_config import family_of
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.tools.tiny_config import boson_config, tiny_tokenizer, v2_config, v3_config
from safetensors.torch import save_file
from tqdm.contrib.concurrent import thread_map

CONFIGS = {
    "v3": v3_config(tiny_tokenizer("v3"), 336),
    "v2": v2_config(tiny_tokenizer("v2"), 296),
    "v2-boson": boson_config(tiny_tokenizer("v2"), 296),
}
V3, V2 = "Higgs TTS 3 (4B)", "Higgs Audio v2 (3B)"


def make(folder, layout="v3", without=()):
    """Make a folder with a checkpoint's files. The weights are fake, since nothing may read them."""
    folder.mkdir(parents=True)
    held = {"config.json": json.dumps(CONFIGS[layout]), "tokenizer.json": "{}", "model.safetensors": "not read"}
    for name, text in held.items():
        if name not in without:
            (folder / name).write_text(text)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def test_the_config_decides_the_family():
    assert {layout: family_of(config) for layout, config in CONFIGS.items()} == {
        "v3": "v3",
        "v2": "v2",
        "v2-boson": "v2",
    }
    bare = [{k: v for k, v in CONFIGS[layout].items() if k != "model_type"} for layout in ("v3", "v2-boson")]
    assert [family_of(config) for config in bare] == ["v3", "v2"]
    others = ({}, {"model_type": "qwen3"}, {"model_type": "higgs_audio_v2_tokenizer"}, {"model_type": "higgs_audio_3"})
    assert not any(family_of(config) for config in others)


def test_unreadable_folders_hide_no_others(tmp_path, monkeypatch):
    """Such as lost+found at the root of a disk."""
    make(tmp_path / "higgs-tts-3-4b")
    (tmp_path / "a" / "lost+found").mkdir(parents=True)
    real = pathlib.Path.is_file

    def is_file(path, **given):
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **given)

    monkeypatch.setattr(pathlib.Path, "is_file", is_file)
    assert [found.name for found in find_checkpoints([tmp_path])] == ["higgs-tts-3-4b"]


def test_checkpoints_are_found_some_levels_down_and_other_models_ignored(tmp_path):
    root = tmp_path / "TTS"
    wanted = [
        make(root / "higgs-tts-3-4b"),
        make(root / "higgs_audio" / "base", "v2"),
        make(root / "a" / "b" / "c", "v2-boson"),
    ]
    make(root / "a" / "b" / "c" / "inside")
    make(root / "x" / "y" / "z" / "too-deep")
    make(root / ".cache" / "hidden")
    (root / "qwen").mkdir()
    (root / "qwen" / "config.json").write_text('{"model_type": "qwen3"}')
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    found = find_checkpoints([root, tmp_path / "absent"])
    assert [(f.name, f.family, f.complete) for f in found] == [
        ("a/b/c", "v2", True),
        ("higgs-tts-3-4b", "v3", True),
        ("higgs_audio/base", "v2", True),
    ]
    assert {f.path for f in found} == set(wanted)


def test_a_root_may_be_a_checkpoint_and_names_stay_unique(tmp_path):
    one, two = make(tmp_path / "one" / "higgs"), make(tmp_path / "two" / "higgs", "v2")
    found = find_checkpoints([tmp_path / "one", tmp_path / "two", tmp_path / "one"])
    assert {f.name: f.path for f in found} == {"higgs": one, "two/higgs": two}
    assert [(f.name, f.path) for f in find_checkpoints([one])] == [("higgs", one)]
    assert [f.name for f in find_checkpoints([one, two])] == ["higgs", "two/higgs"]


def test_names_hold_enough_of_the_path_to_be_unique(tmp_path):
    roots = [tmp_path / disk / "TTS" for disk in ("a", "b", "c")]
    for root in roots:
        make(root / "org" / "higgs")
    names = [found.name for found in find_checkpoints(roots)]
    assert names == ["c/TTS/org/higgs", "org/higgs", "TTS/org/higgs"] and not any(map(os.path.isabs, names))


def lacking(tmp_path, layout="v3", **kwargs):
    (found,) = find_checkpoints([make(tmp_path / "higgs", layout, **kwargs)])
    return found


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json"])
def test_a_folder_with_a_file_missing_is_listed_as_incomplete(tmp_path, name):
    found = lacking(tmp_path, without=(name,))
    assert not found.complete and (name if name != "model.safetensors" else ".safetensors") in found.note
    assert found.family == ("" if name == "config.json" else "v3")


def test_an_absent_shard_and_an_unfinished_download_are_named(tmp_path):
    folder = make(tmp_path / "higgs", without=("model.safetensors",))
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / shards["a"]).write_text("")
    part = folder / ".cache" / "huggingface" / "download" / "x.incomplete"
    part.parent.mkdir(parents=True)
    part.write_text("")
    (found,) = find_checkpoints([tmp_path])
    assert not found.complete
    assert shards["b"] in found.note and shards["a"] not in found.note and "x.incomplete" in found.note
    (folder / shards["b"]).write_text("")
    assert find_checkpoints([tmp_path])[0].complete  # what is left of another try does not matter then


def test_the_cache_gives_both_names_and_the_pinned_revision_first(hub):
    pinned = DOWNLOADS[V3].talker.revision
    newer = make(hub / "models--bosonai--higgs-tts-3-4b" / "snapshots" / ("f" * 40))
    former = make(hub / "models--bosonai--higgs-audio-v3-tts-4b" / "snapshots" / pinned)
    v2 = make(hub / "models--bosonai--higgs-audio-v2-generation-3B-base" / "snapshots" / ("e" * 40), "v2")
    make(hub / "models--someone--else" / "snapshots" / "abc")
    os.utime(former, (1, 1))
    assert cached_snapshots(DOWNLOADS[V3].talker) == [former, newer]
    found = find_in_hf_cache()
    assert [f.path for f in found] == [former, newer, v2]
    assert [f.name for f in found] == [
        "bosonai/higgs-audio-v3-tts-4b",
        "bosonai/higgs-tts-3-4b",
        "bosonai/higgs-audio-v2-generation-3B-base",
    ]
    shutil.rmtree(hub)
    assert find_in_hf_cache() == []


def test_the_pinned_revision_has_the_plain_name(hub):
    snapshots = hub / "models--bosonai--higgs-tts-3-4b" / "snapshots"
    for revision in (DOWNLOADS[V3].talker.revision, "f" * 40):
        make(snapshots / revision)
    assert [f.name for f in find_in_hf_cache()] == ["bosonai/higgs-tts-3-4b", "bosonai/higgs-tts-3-4b@fffffff"]
    shutil.rmtree(snapshots / DOWNLOADS[V3].talker.revision)
    make(snapshots / ("e" * 40))
    assert sorted(f.name for f in find_in_hf_cache()) == [
        "bosonai/higgs-tts-3-4b@eeeeeee",
        "bosonai/higgs-tts-3-4b@fffffff",
    ]


def test_downloads_are_pinned_to_whole_commits():
    repos = [repo for d in DOWNLOADS.values() for repo in (d.talker, d.codec) if repo]
    assert len(repos) == 3
    assert all(len(repo.revision) == 40 and set(repo.revision) <= set("0123456789abcdef") for repo in repos)


class Hub:
    """Replaces snapshot_download, and writes the same files."""

    def __init__(self, monkeypatch, fill=True):
        self.calls, self.fill = [], fill
        monkeypatch.setattr(download.huggingface_hub, "snapshot_download", self)

    def __call__(self, repo_id, *, revision, local_dir, allow_patterns, tqdm_class):
        self.calls.append((repo_id, revision, local_dir, tuple(allow_patterns)))
        if self.fill != "files":
            wire = tqdm_class(desc="Downloading bytes", total=0, unit="B", disable=True)
            disk = tqdm_class(desc="Reconstructing", total=0, unit="B", disable=True)
            for _ in range(2):
                wire.update(10**9)
                disk.update(10**9)
        thread_map(str, range(2), desc="Fetching 2 files", tqdm_class=tqdm_class, disable=True)
        if self.fill and "model.pth" not in allow_patterns:
            shutil.copytree(make(discover.Path(local_dir + "-fake")), local_dir, dirs_exist_ok=True)
        return local_dir


def test_a_download_asks_for_the_pinned_files(hub, tmp_path, monkeypatch):
    door = Hub(monkeypatch)
    folder = download_checkpoint(V2, tmp_path / "TTS")
    assert folder == tmp_path / "TTS" / "higgs-audio-v2-generation-3B-base"
    talker, codec = door.calls
    repo = "bosonai/higgs-audio-v2-generation-3B-base"
    assert talker[:3] == (repo, "10840182ca4ad5d9d9113b60b9bb3c1ef1ba3f84", str(folder))
    assert codec[1:3] == ("9d4988fbd4ad07b4cac3a5fa462741a41810dbec", str(folder / "audio_tokenizer"))
    assert codec[3][:2] == ("config.json", "model.pth")
    door.calls.clear()
    download_checkpoint(V3, tmp_path / "TTS")
    assert [call[:2] for call in door.calls] == [("bosonai/higgs-tts-3-4b", DOWNLOADS[V3].talker.revision)]


@pytest.mark.parametrize("label", [V3, V2])
def test_whole_files_are_not_downloaded_again(hub, tmp_path, monkeypatch, label):
    """Also offline. A damaged file is downloaded again."""
    door = Hub(monkeypatch, fill=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = make(tmp_path / DOWNLOADS[label].folder, "v3" if label == V3 else "v2-boson")
    weights = folder / "model.safetensors"
    save_file({"weight": torch.zeros(8)}, weights)
    if label == V2:
        with pytest.raises(HiggsError, match="HF_HUB_OFFLINE"):
            download_checkpoint(label, tmp_path)
        codec = folder / "audio_tokenizer"
        codec.mkdir()
        (codec / "config.json").write_text("{}")
        torch.save({"weight": torch.zeros(8)}, codec / "model.pth")
    assert download_checkpoint(label, tmp_path) == folder and not door.calls
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(HiggsError, match="HF_HUB_OFFLINE"):
        download_checkpoint(label, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    download_checkpoint(label, tmp_path)
    assert door.calls


def test_progress_counts_bytes_on_disk_once(hub, tmp_path, monkeypatch):
    Hub(monkeypatch)
    seen = []
    download_checkpoint(V3, tmp_path, lambda fraction, text: seen.append((round(fraction, 3), text)))
    assert seen[-1] == (round(2 / 9.32, 3), "2.0 of 9.3 GB")
    assert seen == sorted(seen) and all(0 < fraction <= 1 for fraction, _ in seen)


def test_progress_counts_files_if_sizes_are_unknown(hub, tmp_path, monkeypatch):
    Hub(monkeypatch, fill="files")
    seen = []
    download_checkpoint(V2, tmp_path, lambda *told: seen.append(told))
    assert seen == [(0.5, "1 of 2 files"), (1.0, "2 of 2 files"), (0.75, "3 of 4 files"), (1.0, "4 of 4 files")]


def test_a_download_that_stopped_goes_on_even_if_the_model_would_load(hub, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise OSError("no space")

    folder = make(tmp_path / DOWNLOADS[V3].folder)
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(download.huggingface_hub, "snapshot_download", stop)
    with pytest.raises(HiggsError, match="no space"):
        download_checkpoint(V3, tmp_path)
    save_file({"weight": torch.zeros(8)}, folder / "model.safetensors")
    door = Hub(monkeypatch, fill=False)
    assert download_checkpoint(V3, tmp_path) == folder and len(door.calls) == 1
    assert download_checkpoint(V3, tmp_path) == folder and len(door.calls) == 1


class Cancelled(Exception):
    pass


def test_an_error_in_the_callback_ends_the_download(hub, tmp_path, monkeypatch):
    door = Hub(monkeypatch)

    def cancel(*told):
        raise Cancelled

    with pytest.raises(Cancelled):
        download_checkpoint(V2, tmp_path, cancel)
    assert len(door.calls) == 1


def test_a_download_with_missing_files_is_not_called_whole(hub, tmp_path, monkeypatch):
    # Without a network, snapshot_download returns a folder that was begun earlier as if all were well.
    Hub(monkeypatch, fill=False)
    with pytest.raises(HiggsError, match=r"config\.json.*again"):
        download_checkpoint(V3, tmp_path)


def test_offline_unknown_and_unreachable_have_clear_errors(hub, tmp_path, monkeypatch):
    door = Hub(monkeypatch)
    with pytest.raises(HiggsError, match="Higgs TTS 3"):
        download_checkpoint("Higgs 9", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HiggsError, match="HF_HUB_OFFLINE"):
        download_checkpoint(V3, tmp_path)
    assert not door.calls
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(download.huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(HiggsError, match=r"bosonai/higgs-tts-3-4b.*no route.*again"):
        download_checkpoint(V3, tmp_path)
