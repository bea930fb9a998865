"""The doctor describes sound folders fully and broken ones without raising."""

import json
import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, VERSION, Engine, EngineConfig, HiggsError
from higgs_tts.engine.checkpoint.discover import constants
from higgs_tts.engine.decode.kernels import single
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.engine.tools.tiny import FAMILIES, write_tiny
from higgs_tts.tests.sharded import sharded
from safetensors.torch import load_file, save_file


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
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "model.safetensors.index.json"),
        ("audio_tokenizer/model.safetensors", "audio codec"),
    ],
)
def test_a_missing_file_is_a_problem_with_a_remedy(copy, name, says):
    folder = copy("v2")
    (folder / name).unlink()
    report = examine(folder)
    assert sum(says in problem for problem in report.problems) == 1
    assert ("audio_tokenizer" if "audio" in name else "again") in report.advice
    assert "problem:" in report.as_text()


def test_damage_is_reported_part_by_part(copy):
    folder = copy("v3")
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "higgs_audio_v2"}', encoding="utf-8")
    report = examine(folder)
    assert len(report.problems) == 2 and not report.family
    assert "a different model" in report.problems[0] and "tokenizer.json" in report.problems[1]
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    assert any("model.safetensors" in problem for problem in examine(folder).problems)


def test_doctor_names_the_right_folder(copy):
    folder = copy("v2")
    assert str(folder) in examine(folder.parent).advice
    assert "codec" in examine(folder / "audio_tokenizer").advice


def test_a_wrong_folder_is_searched_two_levels_deep(tmp_path, written):
    deep = shutil.copytree(written["v3"], tmp_path / "models" / "tts" / "higgs")
    for number in range(100):
        (tmp_path / "models" / f"{number:03}.txt").write_text("", encoding="utf-8")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "file").write_text("", encoding="utf-8")
    report = examine(tmp_path)
    assert list(report.files) == [f"models/{number:03}.txt" for number in range(100)]
    assert report.notes[-1] == "Not checked, because more than 2 levels deep: models/tts/higgs."
    text = report.as_text()
    assert text.count("file: ") == 40 and "... and 60 more" in text and str(deep) not in text
    report = examine(tmp_path / "models")
    assert "tts/higgs/model.safetensors" in report.files and str(deep) in report.advice and not report.notes


def other_tokens(folder, change):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    change(tokenizer)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return examine(folder)


def without(*names):
    def change(tokenizer):
        tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if not t["content"].startswith(names)]

    return change


def beyond(tokenizer):
    for token in tokenizer["added_tokens"]:
        token["id"] += 1000


def unknown(tokenizer):
    tokenizer["model"]["type"] = "Newer"


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("v3", without("<|tts|>"), "<|tts|>"),
        ("v2", without("<|audio_out_bos|>"), "<|audio_out_bos|>"),
        ("v3", beyond, "336"),
        ("v3", unknown, "read by tokenizers"),
        ("v3", lambda tokenizer: tokenizer.pop("model"), "is not a tokenizer"),
    ],
)
def test_a_tokenizer_that_loading_refuses_is_a_problem(copy, family, change, says):
    folder = copy(family)
    report = other_tokens(folder, change)
    (problem,) = report.problems
    assert says in problem and str(folder / "tokenizer.json") in problem
    assert "Nothing to do" not in report.advice
    with pytest.raises(HiggsError) as error:
        Engine(EngineConfig(model=str(folder), device="cpu"))
    assert str(error.value) == problem


def test_a_usable_but_incomplete_tokenizer_is_a_note(copy):
    folder = copy("v3")
    report = other_tokens(folder, without("<|ref_text|>", "<|sfx"))
    assert not report.problems and "Nothing to do" in report.advice
    assert "<|ref_text|>" in report.notes[0] and "9 of the 43" in report.notes[1]
    assert "note:" in report.as_text()


def cut(path, size=5000):
    path.write_bytes(path.read_bytes()[:size])


def point(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", encoding="utf-8")


def rename_all(path):
    tensors = {f"x{name[1:]}": tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()
    (path.parent / "model.safetensors.index.json").unlink()
    save_file(tensors, path)


DAMAGE = {
    "no config": ("config.json", lambda path: path.unlink(), "config.json", "Download"),
    "config cut short": ("config.json", lambda path: cut(path, 100), "JSON", "Download"),
    "config of another": (
        "config.json",
        lambda path: path.write_text('{"model_type": "qwen3"}', encoding="utf-8"),
        "'qwen3'",
        "Download",
    ),
    "weights cut short": ("model.safetensors", lambda path: cut(path, -9), "cut short", "Download"),
    "weights cut at once": ("model.safetensors", cut, "safetensors file", "Download"),
    "a pointer": ("model.safetensors", point, "Git LFS", "Run 'git lfs pull'"),
    "a tokenizer's pointer": ("tokenizer.json", point, "Git LFS", "Run 'git lfs pull'"),
    "unknown names": ("model.safetensors", rename_all, "'body.' and 'tied.'", "Download"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_v3_folder_gets_advice(copy, name):
    folder = copy("v3")
    file, damage, problem, advice = DAMAGE[name]
    damage(folder / file)
    report = examine(folder)
    assert any(problem in told for told in report.problems), report.problems
    assert report.advice.startswith(advice), report.advice


@pytest.mark.parametrize("damage", [lambda path: cut(path, -9), point, lambda path: path.unlink()])
def test_a_damaged_shard_gets_advice(tmp_path, damage):
    folder = sharded(write_tiny(tmp_path / "higgs", "v3"), 2)
    damage(folder / "model-00002-of-00002.safetensors")
    report = examine(folder)
    assert any("model-00002-of-00002.safetensors" in problem for problem in report.problems)
    assert report.advice.startswith(("Download", "Run")), report.advice


def test_a_byte_order_mark_is_no_problem(copy):
    folder = copy("v3")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert not examine(folder).problems


def test_a_talker_that_cannot_be_opened_is_not_called_a_codec(copy):
    """Its folder may hold the codec's file as well."""
    folder = copy("v2-boson")
    shutil.copy(folder / "audio_tokenizer" / "model.pth", folder)
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert examine(folder).advice.startswith("Download")


def test_many_tensors_that_do_not_fit_are_summed_up(copy):
    folder = copy("v2-boson")
    path = folder / "model.safetensors"
    tensors = {name: t.clone() for name, t in load_file(path).items() if not name.startswith("layers.1.")}
    path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, path)
    report = examine(folder)
    assert report.layout == "v2-boson" and report.codec_layout == "older"
    assert len(report.problems) == 13 and "2 more" in report.problems[-1]


def test_a_missing_folder_is_reported(tmp_path):
    report = examine(tmp_path / "absent")
    assert str(tmp_path / "absent") in report.problems[0] and report.advice
    assert examine(tmp_path).problems


def test_the_kernels_of_this_machine_are_named(written, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = examine(written["v3"])
    assert report.kernels.startswith("torch ops (") and "NVIDIA" in report.kernels
    assert "kernels:    torch ops" in report.as_text() and report.as_dict()["kernels"] == report.kernels
    assert not report.problems


def test_the_fused_kernel_is_named_if_there_is_a_compiler(monkeypatch):
    model = ModelConfig("v3", "v3", 2560, 36, 32, 8, 128, 9728, 1e-6, RopeConfig(1e6), 151936)
    compiled = []

    def compile_cubin(source, capability, options):
        compiled.append(capability)
        if len(compiled) > 1:
            raise single.KernelUnavailable("libnvrtc.so.13 could not be loaded")

    monkeypatch.setattr(single, "compile_cubin", compile_cubin)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    here = torch.device("cuda", 0)
    assert single.decode_ops(model, here, torch.bfloat16) == "CUDA kernel for one row" and compiled == ["86"]
    for dtype, why in ((torch.bfloat16, "libnvrtc.so.13"), (torch.float32, "bf16")):
        ops = single.decode_ops(model, here, dtype)
        assert ops.startswith("torch ops (") and why in ops
    assert len(compiled) == 2


def test_doctor_lists_the_versions(written):
    report = examine(written["v3"])
    assert (
        report.versions["higgs-tts"] == VERSION
        and report.versions["torch"]
        and report.versions["transformers"]
        and report.versions["python"]
    )
    assert f"torch {report.versions['torch']}" in report.as_text()


def test_doctor_lists_the_memory_of_every_dtype():
    report = examine(EMBEDDED)
    assert list(report.memory) == ["bf16", "fp32", "int8", "int4"]
    with Engine(EngineConfig(EMBEDDED, device="cpu", dtype="int8")) as engine:
        assert engine.held_bytes > report.memory["int8"] > 0.3 * engine.held_bytes  # a CPU computes in fp32
    assert report.memory["fp32"] > report.memory["bf16"] > report.memory["int8"] > report.memory["int4"]
    assert f"int4 {report.memory['int4'] / 1e6:,.0f} MB" in report.as_text()
    assert report.auto in ("bf16", "fp32") and report.auto in report.as_text()  # it is small: on a GPU, on a CPU
    assert (report.gpu_free is None) == (not torch.cuda.is_available())
    report.gpu_free = 5_000_000_000
    assert "5,000 MB of the GPU's memory" in report.as_text()


def test_quantised_memory_is_listed_only_if_widths_allow_it(written):
    assert list(examine(written["v3"]).memory) == ["bf16", "fp32"]
