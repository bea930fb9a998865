"""Broken weights are refused by the tensor's name when the model opens; sound ones are not."""

import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Adapter, Engine, EngineConfig, HiggsError
from higgs_tts.engine.checkpoint.load import inspect
from higgs_tts.engine.checkpoint.self_check import check_logits
from higgs_tts.engine.tools.quantize_folder import quantize_folder
from higgs_tts.tests.peft_files import write_adapter
from safetensors.torch import load, save_file

Q_PROJ, NORM = "body.layers.1.self_attn.q_proj.weight", "body.layers.0.input_layernorm.weight"


def spoilt(folder, to, name, change):
    """Copy a checkpoint with one tensor changed."""
    shutil.copytree(folder, to)
    tensors = load((to / "model.safetensors").read_bytes())  # Windows replaces no file that is mapped
    tensors[name] = change(tensors[name])
    save_file(tensors, to / "model.safetensors")
    return to


def with_one(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[3] = value
        return tensor

    return change


@pytest.mark.parametrize("name", [Q_PROJ, NORM, "tied.embedding.modality_embeddings.0.embedding.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_no_number_is_reported_with_its_tensor(written, tmp_path, name, value):
    folder = spoilt(written["v3"], tmp_path / "a", name, with_one(value))
    engine = Engine(EngineConfig(folder, device="cpu"))
    key = "q_proj" if name == Q_PROJ else name
    with pytest.raises(HiggsError, match=rf"damaged.*{key}.* in .*model\.safetensors contains NaN or infinity.*again"):
        engine.open()
    assert not engine.opened


def test_codes_without_their_scale_are_refused(written, tmp_path):
    """A converter may forget the scales."""
    folder = spoilt(written["v3"], tmp_path / "a", Q_PROJ, lambda q: (q / q.abs().max() * 127).round())
    with pytest.raises(HiggsError, match=r"converted incorrectly: .*q_proj.*contains weights of \d\d\."):
        Engine(EngineConfig(folder, device="cpu")).open()


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_scales_of_quantised_weights_are_checked(tmp_path, weights):
    with Engine(EngineConfig(EMBEDDED, device="cpu", dtype=weights)):
        pass
    folder = quantize_folder(EMBEDDED, tmp_path / "a", weights)
    if weights == "int8":
        spoilt_one = spoilt(folder, tmp_path / "b", Q_PROJ + "_scale", with_one(float("nan")))
    else:  # a group's scale stands in the last two bytes of its block
        spoilt_one = spoilt(
            folder, tmp_path / "b", Q_PROJ, lambda data: data.clone().index_fill_(1, torch.tensor([270, 271]), 0x7F)
        )
    with pytest.raises(HiggsError, match=r"q_proj.*(NaN|has weights of)"):
        Engine(EngineConfig(spoilt_one, device="cpu")).open()


def test_a_damaged_lora_is_named(written, tmp_path):
    with torch.inference_mode(False):
        write_adapter(written["v3"], tmp_path / "lora", "plain")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    tensors = load(path.read_bytes())
    name = next(name for name in tensors if "q_proj.lora_B" in name)
    save_file({**tensors, name: torch.full_like(tensors[name], float("inf"))}, path)
    with pytest.raises(HiggsError, match=r"q_proj.*NaN or infinity.*and of the LoRA again"):
        Engine(EngineConfig(written["v3"], device="cpu", adapters=(Adapter(str(tmp_path / "lora")),))).open()


@pytest.mark.parametrize("value", [float("nan"), 1e6, -1e6])
def test_logits_out_of_proportion_are_refused(written, value):
    logits = torch.randn(8208)
    check_logits(inspect(written["v3"]), logits)
    logits[7] = value
    with pytest.raises(HiggsError, match=r"short prompt their logits reach (nan|1,000,000)"):
        check_logits(inspect(written["v3"]), logits)


def test_a_checkpoint_with_such_logits_is_refused_on_opening(written, tmp_path):
    folder = spoilt(written["v3"], tmp_path / "a", "body.norm.weight", lambda norm: norm * 5000)
    with pytest.raises(HiggsError, match=r"logits reach"):
        Engine(EngineConfig(folder, device="cpu")).open()


@pytest.mark.parametrize("family", ["v3", "v2", "v2-boson"])
def test_sound_checkpoints_open(written, family):
    for folder in (written[family], EMBEDDED):
        with Engine(EngineConfig(folder, device="cpu")) as engine:
            assert engine.opened
