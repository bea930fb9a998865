"""Fine-tunes under the transformers port's names speak like the same weights under Boson's."""

import json
import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.checkpoint.discover import constants
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.tests.port_files import EMBEDDING, HEAD, with_head, write_port
from safetensors.torch import load, save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=12, seed=5, retries=0)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def spoken(folder, dtype="fp32", adapters=()):
    with Engine(EngineConfig(folder, device="cpu", dtype=dtype, adapters=adapters)) as engine:
        return engine.speak("hello the world", params=PARAMS)


@pytest.fixture(scope="module")
def bases(written):
    return {"tiny": written["v3"], "embedded": EMBEDDED}


def changed_head(base):
    """Return a head that training has moved away from the embedding."""
    codes = open_folder(base).get(EMBEDDING)
    noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(3))
    return (codes.float() + 0.3 * noise * codes.float().std()).to(codes.dtype)


@pytest.mark.parametrize("head", ["tied", "copied", "apart"])
@pytest.mark.parametrize(
    ("model", "dtype"),
    [("tiny", "fp32"), ("tiny", "bf16"), ("embedded", "fp32"), ("embedded", "bf16"), ("embedded", "int8")],
)
def test_the_port_s_names_give_the_codes_of_boson_s(bases, tmp_path, model, dtype, head):
    base = shutil.copytree(bases[model], tmp_path / "base")
    weights = {"tied": None, "copied": open_folder(base).get(EMBEDDING).clone(), "apart": changed_head(base)}[head]
    boson = base if head != "apart" else with_head(base, tmp_path / "boson", weights)
    port = write_port(base, tmp_path / "port", weights)
    said, expected, checkpoint = spoken(port, dtype), spoken(boson, dtype), inspect(port)
    assert torch.equal(said.codes, expected.codes) and torch.equal(said.wav, expected.wav)
    assert checkpoint.plan.tied is inspect(boson).plan.tied is (head != "apart")
    if head == "apart":
        assert not torch.equal(said.codes, spoken(base, dtype).codes)


def test_a_head_apart_does_not_need_the_config_s_word(written, tmp_path):
    """Trainers keep tie_word_embeddings true after they have trained the two apart."""
    head = changed_head(written["v3"])
    folder = with_head(written["v3"], tmp_path / "apart", head)
    assert (
        json.loads((folder / "config.json").read_text(encoding="utf-8"))["audio_encoder_config"]["tie_word_embeddings"]
        is True
    )
    assert "differs from the code embedding" in examine(folder).as_text()
    tensors = load_talker(inspect(folder), CPU, torch.float32)
    assert torch.equal(tensors["head_codes"], head.float())
    assert torch.equal(tensors["embed_codes"], open_folder(folder).get(EMBEDDING).float())


def test_a_head_in_another_dtype_may_still_be_a_copy(written, tmp_path):
    head = open_folder(written["v3"]).get(EMBEDDING).float()
    assert inspect(with_head(written["v3"], tmp_path / "wide", head)).plan.tied
    assert not inspect(with_head(written["v3"], tmp_path / "moved", head * 1.01)).plan.tied


@pytest.mark.parametrize("shape", [(), (3,), (8208, 3), (0, 64)])
def test_a_head_of_another_shape_is_a_problem(written, tmp_path, shape):
    folder = with_head(written["v3"], tmp_path / "odd", torch.zeros(shape))
    assert any(HEAD in problem and "shape" in problem for problem in inspect(folder).problems)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_a_wrapper_s_prefix_is_ignored(written, tmp_path, prefix):
    shutil.copytree(written["v3"], tmp_path / "base")
    port = write_port(written["v3"], tmp_path / "port")
    plain = {name: tensor.clone() for name, tensor in load_talker(inspect(port), CPU, torch.float32).items()}
    path = port / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load(path.read_bytes()).items()}, path)
    ours = load_talker(inspect(port), CPU, torch.float32)
    assert all(torch.equal(ours[name], tensor) for name, tensor in plain.items())


def test_a_language_model_of_the_same_names_is_no_talker(written, tmp_path):
    port = write_port(written["v3"], tmp_path / "port")
    path = port / "model.safetensors"
    save_file({name: tensor for name, tensor in load(path.read_bytes()).items() if not name.startswith("audio_")}, path)
    with pytest.raises(HiggsError, match="does not contain a Higgs model"):
        inspect(port)


def test_tensors_without_a_place_and_missing_ones_are_named(written, tmp_path):
    shutil.copytree(written["v3"], tmp_path / "base")
    port = write_port(written["v3"], tmp_path / "port")
    path = port / "model.safetensors"
    tensors = load(path.read_bytes())
    del tensors["model.norm.weight"]
    save_file({**tensors, "audio_adapter.weight": torch.ones(2)}, path)
    problems = inspect(port).problems
    assert any("audio_adapter.weight is not part" in problem for problem in problems)
    assert any("model.norm.weight is missing" in problem for problem in problems)


class TestCodec:
    @pytest.mark.parametrize("place", ["models/base", "more/base"])
    def test_a_base_nearby_lends_its_codec_and_is_named(self, written, tmp_path, place):
        base = shutil.copytree(written["v3"], tmp_path / place)
        port = write_port(written["v3"], tmp_path / "more" / "anna")
        if place.startswith("models"):
            port = shutil.move(port, tmp_path / "models" / "anna" / "checkpoint-best")
        said = f"{port} contains no codec; the codec in {base} is used."
        assert inspect(port).codec_folder == base and said in inspect(port).notes
        assert said in spoken(port).warnings
        report = examine(port)
        assert said in report.notes and report.codec == str(base) and "Nothing to do" in report.advice

    def test_a_relative_path_has_neighbours_too(self, written, tmp_path, monkeypatch):
        base = shutil.copytree(written["v3"], tmp_path / "base")
        write_port(written["v3"], tmp_path / "anna")
        monkeypatch.chdir(tmp_path)
        assert inspect("anna").codec_folder == base

    def test_a_base_in_the_cache_lends_its_codec(self, written, tmp_path):
        place = tmp_path / "hub" / "models--bosonai--higgs-audio-v3-tts-4b" / "snapshots" / "abc"
        shutil.copytree(written["v3"], place)
        assert inspect(write_port(written["v3"], tmp_path / "port")).codec_folder == place

    def test_its_own_codec_comes_first(self, written, tmp_path):
        shutil.copytree(written["v3"], tmp_path / "base")
        port = write_port(written["v3"], tmp_path / "port")
        own = shutil.copytree(written["v2"] / "audio_tokenizer", port / "audio_tokenizer")
        assert inspect(port).codec_folder == own and not inspect(port).warnings

    def test_a_model_of_another_size_lends_none(self, written, tmp_path):
        shutil.copytree(EMBEDDED, tmp_path / "base")
        port = write_port(written["v3"], tmp_path / "port")
        with pytest.raises(HiggsError) as error:
            inspect(port)
        for part in ("model.pth", "bosonai/higgs-audio-v2-tokenizer", "bosonai/higgs-tts-3-4b", str(port)):
            assert part in str(error.value)
        report = examine(port)
        assert "model.pth" in report.advice and not report.codec and report.family == "v3"

    def test_the_embedded_model_lends_its_codec_to_its_fine_tunes(self, tmp_path):
        assert inspect(write_port(EMBEDDED, tmp_path / "port")).codec_folder == EMBEDDED


def test_doctor_never_advises_to_delete(written, tmp_path):
    shutil.copytree(written["v3"], tmp_path / "base")
    port = write_port(written["v3"], tmp_path / "port", tokenizer=False)
    report = examine(port)
    assert "Copy tokenizer.json" in report.advice and "ownload" not in report.advice
    path = port / "model.safetensors"
    save_file({f"strange.{name}": tensor for name, tensor in load(path.read_bytes()).items() if "layers" in name}, path)
    shutil.copy(written["v3"] / "tokenizer.json", port)
    advice = examine(port).advice.lower()
    assert "keep them" in advice and "remove" not in advice and "delete" not in advice
