"""The doctor describes sound folders fully and broken ones without raising."""

import json
import shutil

import pytest
import torch
from higgs_tts.engine.config import ModelConfig, RopeConfig
from higgs_tts.engine.doctor import examine
from higgs_tts.engine.files import constants
from higgs_tts.engine.kernels import choice
from higgs_tts.engine.tiny import FAMILIES, write_tiny
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    return {family: write_tiny(root / family, family) for family in FAMILIES}


@pytest.fixture
def copy(written, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return lambda family: shutil.copytree(written[family], tmp_path / "model")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_folder_is_described(written, family):
    report = examine(written[family])
    assert not report.problems and "Nothing to do" in report.advice
    assert (report.family, report.layout) == (family[:2], family)
    assert report.dimensions["layers"] == 2 and report.dimensions["heads"] == f"{8 if family == 'v3' else 4}/2 x 16"
    assert report.dtypes == {"bfloat16": 25 if family == "v3" else 33}
    assert report.codec_layout == {"v3": "bundled", "v2": "transformers", "v2-boson": "older"}[family]
    assert report.tokens > 256
    assert report.files["model.safetensors"] == (written[family] / "model.safetensors").stat().st_size
    assert json.loads(json.dumps(report.as_dict()))["layout"] == family
    text = report.as_text()
    for part in (str(written[family]), "Higgs " + family[:2], "hidden 64", "bfloat16", "tokenizer.json"):
        assert part in text
    assert "problem:" not in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "tokenizer.json is missing"),
        ("model.safetensors", "model.safetensors.index.json names it"),
        ("audio_tokenizer/model.safetensors", "no audio codec"),
    ],
)
def test_a_missing_file_is_a_problem_with_a_remedy(copy, name, says):
    folder = copy("v2")
    (folder / name).unlink()
    report = examine(folder)
    assert any(says in problem for problem in report.problems)
    assert ("audio_tokenizer" if "audio" in name else "again") in report.advice
    assert "problem:" in report.as_text()


def test_damage_is_told_part_by_part(copy):
    folder = copy("v3")
    (folder / "tokenizer.json").write_text("{")
    (folder / "config.json").write_text('{"model_type": "higgs_audio_v2"}')
    report = examine(folder)
    assert len(report.problems) == 2 and not report.family
    assert "another model" in report.problems[0] and "tokenizer.json" in report.problems[1]
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    assert any("model.safetensors" in problem for problem in examine(folder).problems)


def test_the_right_folder_is_named(copy):
    folder = copy("v2")
    assert str(folder) in examine(folder.parent).advice
    assert examine(folder / "audio_tokenizer").advice.startswith("This is a codec")


def test_many_tensors_that_do_not_fit_are_summed_up(copy):
    folder = copy("v2-boson")
    path = folder / "model.safetensors"
    tensors = {name: t.clone() for name, t in load_file(path).items() if not name.startswith("layers.1.")}
    path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, path)
    report = examine(folder)
    assert report.layout == "v2-boson" and report.codec_layout == "older"
    assert len(report.problems) == 13 and report.problems[-1] == "... and 2 more tensors like these."


def test_what_is_no_folder_is_said_to_be_none(tmp_path):
    report = examine(tmp_path / "absent")
    assert "is no folder" in report.problems[0] and report.advice
    assert examine(tmp_path).problems


def test_the_kernels_of_this_machine_are_named(written, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = examine(written["v3"])
    assert report.kernels == "torch ops (it needs an NVIDIA GPU)"
    assert "kernels:    torch ops" in report.as_text() and report.as_dict()["kernels"] == report.kernels
    assert not report.problems


def test_the_fused_kernel_is_named_where_there_is_a_compiler(monkeypatch):
    model = ModelConfig("v3", "v3", 2560, 36, 32, 8, 128, 9728, 1e-6, RopeConfig(1e6), 151936)
    compiled = []

    def compile_cubin(source, capability, options):
        compiled.append(capability)
        if len(compiled) > 1:
            raise choice.NoCompiler("libnvrtc.so.13 could not be loaded")

    monkeypatch.setattr(choice, "compile_cubin", compile_cubin)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    here = torch.device("cuda", 0)
    assert choice.decode_ops(model, here, torch.bfloat16) == "one fused kernel" and compiled == ["86"]
    assert choice.decode_ops(model, here, torch.bfloat16) == "torch ops (libnvrtc.so.13 could not be loaded)"
    assert choice.decode_ops(model, here, torch.float32) == "torch ops (it computes in bf16 only)"
    assert len(compiled) == 2
