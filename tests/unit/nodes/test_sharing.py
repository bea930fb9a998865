"""Loaders with equal settings share one engine, others do not, and none outlives its node."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace

import pytest
from higgs_tts.engine import DOWNLOADS, Engine, EngineConfig, HiggsError
from higgs_tts.engine.tools.tiny import write_tiny


@pytest.fixture
def model(tmp_path):
    return write_tiny(tmp_path / "disk" / "one", "v3")


@pytest.fixture
def load(load_module, model):
    """load(model="one", **settings) -> the loader's output."""

    def run(model="one", **settings):
        return load_module("load").HiggsTTSLoadModel.execute(model, **settings).args[0]

    return run


def test_equal_loaders_share_one_engine(load):
    first = load()
    assert load("elsewhere/one") is first and load(device="cpu", dtype="fp32", context=4096, graphs="auto") is first
    assert not first.engine.opened


@pytest.mark.parametrize("settings", [{"dtype": "bf16"}, {"context": 2048}, {"graphs": "off"}, {"memory": 3.0}])
def test_different_loaders_stay_apart(load, settings):
    first, second = load(), load(**settings)
    first.partially_load(first.load_device)
    second.partially_load(second.load_device)
    assert first.engine.opened and second.engine.opened
    first.detach(True)
    assert second.engine.opened


def test_engine_groups_are_shared_only_with_equal_groups(load, load_module, model):
    share, config = load_module("comfy.sharing").share_patchers, EngineConfig(str(model), device="cpu")

    def shared(context=4096):
        return share([Engine(config), Engine(replace(config, context=context))], [["files"]], "one", "a warning")

    first, again = shared(2048), shared(2048)
    assert first is again and again.others == first.others and len(first.others) == 1
    assert first.others[0].engine.planner.context == 2048 and first.others[0].model.label == "one"
    assert share([Engine(config)], [["files"]]) is not first
    first.partially_load(first.load_device)
    first.others[0].partially_load(first.load_device)
    other = first.others[0].engine
    first.detach(True)
    assert other.opened, "each is taken away by itself"
    del first, again
    gc.collect()
    assert not other.opened, "and goes with the first"


def test_a_replaced_file_opens_another_engine(load, model, tmp_path):
    first = load()
    for file in write_tiny(tmp_path / "new", "v3", seed=1).iterdir():
        os.replace(file, model / file.name)
    assert load() is not first


def test_an_installed_whisper_is_used_in_the_next_run(load, load_module, comfy, tmp_path):
    node, whisper = load_module("load").HiggsTTSLoadModel, tmp_path / "models" / "whisper" / "small"
    comfy["folder_paths"].add_model_folder_path("whisper", str(whisper.parent))
    names = "one", f"download: {next(iter(DOWNLOADS))}", None
    first, before = load(), [node.fingerprint_inputs(name) for name in names]
    first.partially_load(first.load_device)
    whisper.mkdir(parents=True)
    (whisper / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    (whisper / "model.safetensors").write_bytes(b"")
    for name, old in zip(names, before, strict=True):
        assert node.fingerprint_inputs(name) == node.fingerprint_inputs(name) != old, "ComfyUI runs the loader again"
    second, engine = load(), first.engine
    assert second is not first and second.engine.config.whisper == str(whisper) and load() is second
    del first
    gc.collect()
    assert not engine.opened, "the engine without it goes with the old output"


def test_no_engine_outlives_its_last_output(load):
    patcher, again = load(), load()
    patcher.partially_load(patcher.load_device)
    engine = patcher.engine
    seen = [weakref.ref(thing) for thing in (patcher, patcher.model)]
    del patcher
    gc.collect()
    assert engine.opened
    del again
    gc.collect()
    assert not engine.opened and [ref() for ref in seen] == [None, None]
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None and not load().engine.opened


def test_graphs_without_a_gpu_are_an_error_on_the_node(load, load_module):
    with pytest.raises(HiggsError, match=r"^Higgs \w+.*: .*graphs.* cpu"):
        load_module("speak").HiggsTTSSpeak.execute(load(graphs="on"), "Hi")
