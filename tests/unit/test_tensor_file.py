"""Tensors in files: reading, and errors for damaged or half-downloaded folders."""

import codecs
import json
import re

import pytest
import torch
from higgs_tts.engine.checkpoint import places
from higgs_tts.engine.checkpoint.tensor_file import INDEX, open_folder, open_tensors, weight_files
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.tests.sharded import write_shards
from safetensors.torch import save_file


@pytest.fixture
def held():
    g = torch.Generator().manual_seed(0)
    return {
        "a.matrix": torch.randn(3, 5, generator=g).to(torch.bfloat16),
        "a.half": torch.randn(7, generator=g).to(torch.float16),
        "a.scalar": torch.randn((), generator=g),
        "b.empty": torch.zeros(0, 4),
        "b.ids": torch.arange(5),
        "b.mask": torch.tensor([True, False]),
    }


def same(file, held):
    assert set(file.shapes) == set(held)
    for name, tensor in held.items():
        got = file.get(name, torch.device("cpu"))
        assert got.dtype == tensor.dtype == file.dtypes[name]
        assert got.shape == tensor.shape == torch.Size(file.shapes[name])
        assert torch.equal(got, tensor)


def test_every_kind_of_file_gives_the_same_tensors(tmp_path, held):
    save_file(held, tmp_path / "model.safetensors")
    torch.save(held, tmp_path / "model.pth")
    torch.save(held, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    same(open_folder(tmp_path), held)
    same(open_tensors([tmp_path / "model.pth"]), held)
    same(open_tensors([tmp_path / "legacy.pth"]), held)
    (tmp_path / "sharded").mkdir()
    where = write_shards(tmp_path / "sharded", held)
    file = open_folder(tmp_path / "sharded")
    same(file, held)
    assert all(file.file_of(name).endswith(where[name]) for name in held)


def test_no_data_is_read_before_get(tmp_path, held, monkeypatch):
    save_file(held, tmp_path / "model.safetensors")
    reads = []
    monkeypatch.setattr(places.np, "memmap", lambda *args, **kwargs: reads.append(args) or 1 / 0)
    file = open_folder(tmp_path)
    assert file.shapes["a.matrix"] == (3, 5) and not reads
    with pytest.raises(ZeroDivisionError):
        file.get("a.matrix")


def test_a_prefix_view_strips_the_prefix_and_hides_the_rest(tmp_path, held):
    save_file(held, tmp_path / "model.safetensors")
    view = open_folder(tmp_path).under("b.")
    assert set(view.shapes) == {"empty", "ids", "mask"}
    assert torch.equal(view.get("ids"), held["b.ids"])


def test_a_shard_missing_from_the_folder_is_named(tmp_path, held):
    write_shards(tmp_path, held)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(HiggsError, match="model-00002-of-00003"):
        open_folder(tmp_path)


def test_a_missing_shard_is_noticed_without_an_index(tmp_path, held):
    write_shards(tmp_path, held)
    (tmp_path / INDEX).unlink()
    same(open_folder(tmp_path), held)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(HiggsError, match="model-00003-of-00003"):
        weight_files(tmp_path)


def test_files_that_macos_leaves_are_no_shards(tmp_path, held):
    write_shards(tmp_path, held)
    (tmp_path / INDEX).unlink()
    (tmp_path / "._model-00001-of-00003.safetensors").write_bytes(b"\x00\x05\x16\x07")
    same(open_folder(tmp_path), held)


def test_an_index_of_another_revision_is_ignored(tmp_path, held):
    write_shards(tmp_path, held)
    for path in tmp_path.glob("model-*"):
        path.unlink()
    save_file(held, tmp_path / "model.safetensors")
    same(open_folder(tmp_path), held)


def test_a_tensor_listed_in_the_index_must_exist(tmp_path, held):
    where = write_shards(tmp_path, held)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {**where, "a.lost": where["a.half"]}}), encoding="utf-8")
    with pytest.raises(HiggsError, match=r"a\.lost"):
        open_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_named(tmp_path, text):
    (tmp_path / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(HiggsError, match=r"index\.json"):
        weight_files(tmp_path)


def test_a_truncated_file_is_named(tmp_path, held):
    path = tmp_path / "model.safetensors"
    save_file(held, path)
    whole = path.read_bytes()
    for size, what in [(len(whole) - 1, "cut short"), (40, "damaged"), (0, "damaged")]:
        path.write_bytes(whole[:size])
        with pytest.raises(HiggsError, match=what):
            open_folder(tmp_path)


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"not json at all"])
def test_an_invalid_header_is_named(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(HiggsError, match=r"model\.safetensors"):
        open_folder(tmp_path)


POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\nsize 9\n"
)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth", INDEX])
def test_a_git_lfs_pointer_is_recognised(tmp_path, name):
    (tmp_path / name).write_text(POINTER, encoding="utf-8")
    with pytest.raises(HiggsError, match=rf"{re.escape(name)}.*git lfs pull.*{re.escape(str(tmp_path))}"):
        open_tensors([tmp_path / name]) if name != INDEX else open_folder(tmp_path)


def test_an_index_with_a_byte_order_mark_is_read(tmp_path, held):
    write_shards(tmp_path, held)
    path = tmp_path / INDEX
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    same(open_folder(tmp_path), held)


def test_an_unknown_dtype_is_named(tmp_path):
    header = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0")
    with pytest.raises(HiggsError, match="F4"):
        open_folder(tmp_path)


class Trap:
    def __reduce__(self):
        return print, ("a checkpoint ran code",)


def test_pickles_with_other_than_plain_weights_are_refused(tmp_path, held, capsys):
    path = tmp_path / "model.pth"
    for value in (Trap(), [torch.zeros(2)], {"a": 1}):
        torch.save(value, path)
        with pytest.raises(HiggsError, match=r"model\.pth"):
            open_tensors([path])
    assert "ran code" not in capsys.readouterr().out
    torch.save(held, path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(HiggsError, match="cut short"):
        open_tensors([path])


def test_a_tensor_in_two_files_is_refused(tmp_path, held):
    save_file(held, tmp_path / "one.safetensors")
    save_file(held, tmp_path / "two.safetensors")
    with pytest.raises(HiggsError, match=r"two\.safetensors.*one\.safetensors"):
        open_folder(tmp_path)
