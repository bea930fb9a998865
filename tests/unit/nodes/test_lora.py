"""Higgs Load LoRA: the list of LoRAs, and one engine for each choice."""

from __future__ import annotations

import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED_NAME, HiggsError, SamplingParams
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests.peft_files import merged_folder, write_adapter

PARAMS = SamplingParams(max_frames=16, seed=2, retries=0)


@pytest.fixture
def loras(comfy, tmp_path):
    """models/loras with two LoRAs as folders, one nested, a single file, and an image model's LoRA."""
    root = tmp_path / "models" / "loras"
    comfy["folder_paths"].folder_names_and_paths["loras"] = ([str(root)], {".safetensors"})
    base = write_tiny(tmp_path / "disk" / "one", "v3")
    merged = write_adapter(base, root / "anna", "plain")
    merged_folder(base, tmp_path / "disk" / "merged", merged)
    write_adapter(base, root / "more" / "slow", "rslora")
    shutil.copy(root / "anna" / "adapter_model.safetensors", root / "alone.safetensors")
    (root / "image.safetensors").write_bytes(b"an image model's")
    (root / "notes.txt").write_text("none")
    return root


@pytest.fixture
def load(load_module, loras):
    def run(model="one", **settings):
        return load_module("load").HiggsTTSLoadModel.execute(model, **settings).args[0]

    return run


@pytest.fixture
def node(load_module, loras):
    return load_module("lora").HiggsTTSLoadLoRA


@pytest.fixture
def add(node):
    """add(patcher, name, strength) -> the node's output."""
    return lambda *given: node.execute(*given).args[0]


def codes(patcher):
    patcher.partially_load(patcher.load_device)
    said = patcher.engine.speak("hello the world", params=PARAMS).codes
    patcher.detach(True)
    return said


def test_folders_and_single_files_are_listed_once(load_module, loras):
    found = load_module("library.lora_folders")
    assert list(found.loras()) == ["alone.safetensors", "anna", "image.safetensors", "more/slow"]
    assert found.find_lora("elsewhere\\Slow") == loras / "more" / "slow"
    with pytest.raises(HiggsError, match=r"no LoRA 'bob'.*models/loras"):
        found.find_lora("bob")
    (loras / "adapter_config.json").write_text("{}")
    assert "alone.safetensors" in found.loras() and "." not in found.loras()


def test_an_empty_list_says_where_to_put_loras(load_module, comfy):
    node = load_module("lora").HiggsTTSLoadLoRA
    (options,) = [socket.options for socket in node.define_schema().inputs if hasattr(socket, "options")]
    assert options == ["(put one into models/loras)"]
    assert "Put its .safetensors file or PEFT folder" in node.validate_inputs(options[0])


def test_a_format_that_is_slow_on_a_cpu_is_told(load):
    warnings = {dtype: load(EMBEDDED_NAME, dtype=dtype).model.warnings for dtype in ("auto", "fp32", "int8", "int4")}
    assert [dtype for dtype, told in warnings.items() if any("on a CPU it is slower" in one for one in told)] == [
        "int4"
    ]


def test_strength_1_merges_and_0_leaves_the_model(load, add):
    model = load()
    assert add(model, "anna", 0.0) is model
    said = codes(add(model, "anna"))
    assert torch.equal(said, codes(load("merged"))) and not torch.equal(said, codes(model))


def test_equal_choices_share_an_engine_and_others_do_not(load, add):
    model = load()
    one = add(model, "anna", 0.5)
    assert add(load(), "elsewhere/anna", 0.5) is one is not model
    others = [add(model, "anna", 0.6), add(model, "more/slow", 0.5), add(one, "more/slow", 0.5)]
    others += [add(add(model, "more/slow", 0.5), "anna", 0.5), add(load(dtype="bf16"), "anna", 0.5)]
    every = [model, one, *others]
    assert len({id(patcher) for patcher in every}) == len({id(patcher.engine) for patcher in every}) == 7
    assert len({patcher.engine.fingerprint for patcher in every}) == 7  # what Higgs Lines has spoken already goes by it
    assert not any(patcher.engine.opened for patcher in every)
    assert others[2].model.label == "one + anna 0.5 + slow 0.5"


def test_the_loader_s_settings_and_warnings_are_kept(load, add):
    model = load(context=2048, dtype="bf16", device="cuda:7")
    with_lora = add(model, "anna")
    config = with_lora.engine.config
    assert (config.context, config.dtype) == (2048, "bf16") and with_lora.model.warnings == model.model.warnings
    assert "cuda:7" in with_lora.model.warnings[0]


def test_a_replaced_lora_opens_another_engine(load, add, node, loras):
    model, before = load(), node.fingerprint_inputs("anna")
    first = add(model, "anna")
    shutil.rmtree(loras / "anna")
    write_adapter(model.engine.checkpoint.folder, loras / "anna", "plain", seed=1)
    assert node.fingerprint_inputs("anna") != before and add(model, "anna") is not first
    assert node.fingerprint_inputs(None) == []


def test_an_unfit_lora_is_an_error_on_the_node(load, add, node):
    with pytest.raises(HiggsError, match=r"^Higgs Load LoRA: .*image\.safetensors"):
        add(load(), "image.safetensors")
    assert node.validate_inputs("bob").startswith("Higgs Load LoRA: there is no LoRA")
    assert node.validate_inputs("anna") is node.validate_inputs(None) is True


def test_info_names_the_model_and_guessed_settings(load, add, load_module):
    patcher = add(load(), "alone.safetensors", 0.25)
    info = load_module("speak").HiggsTTSSpeak.execute(patcher, "hello", max_frames=8, retries=0).args[1]
    assert "one + alone 0.25" in info and "alpha" in info
