"""HiggsPatcher: an engine unloaded in two steps, never layer by layer, and without raising."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError, Listener

CPU = torch.device("cpu")


@pytest.fixture
def module(load_module):
    return load_module("comfy.patcher")


@pytest.fixture
def patcher(module, make_engine):
    return module.make_patcher(make_engine())


def test_a_patcher_uses_no_memory_before_loading(patcher):
    assert patcher.engine.calls == []
    assert (patcher.model_size(), patcher.loaded_size()) == (1000, 0)
    assert weakref.ref(patcher.model)() is patcher.model and not list(patcher.model.state_dict())


@pytest.mark.parametrize("budget", [0, 0.1, -5.0, 1e32])
def test_the_engine_opens_whole_whatever_the_budget(patcher, budget):
    assert patcher.partially_load(CPU, budget) == 1000
    assert patcher.engine.opened and patcher.loaded_size() == 1000
    assert patcher.partially_load(CPU, budget) == 0 and patcher.engine.calls == ["open"]


@pytest.mark.parametrize("fault", [HiggsError("no"), torch.cuda.OutOfMemoryError("no"), KeyboardInterrupt()])
def test_a_failed_open_leaves_nothing_behind(module, make_engine, fault):
    patcher = module.make_patcher(make_engine(fails=fault))
    with pytest.raises(type(fault)):
        patcher.partially_load(CPU)
    assert patcher.engine.calls == ["open", "close"] and patcher.loaded_size() == 0


def test_detach_closes_the_engine_only_with_unpatch_all(patcher):
    patcher.partially_load(CPU)
    patcher.detach(unpatch_all=False)
    assert patcher.engine.calls == ["open"]
    assert patcher.detach(True) is patcher.model
    assert not patcher.engine.opened and patcher.loaded_size() == 0


def take(patcher, size):
    """Do what ComfyUI does to its only model if `size` bytes are wanted. True if its entry stays."""
    if size < patcher.loaded_size() and patcher.partially_unload(patcher.offload_device, size) >= size:
        return True
    patcher.detach(True)
    return False


def test_mild_pressure_frees_the_cache_and_keeps_the_weights(patcher):
    patcher.partially_load(CPU)
    assert take(patcher, 250)
    assert patcher.engine.calls == ["open", "trim"] and patcher.current_loaded_device() == CPU
    assert (patcher.loaded_size(), patcher.model_size()) == (700, 1000), "only what is missing counts as needed"


def test_a_trimmed_engine_loads_trimmed_and_is_whole_after_speech(patcher):
    patcher.partially_load(CPU)
    patcher.partially_unload(CPU, 1)
    assert patcher.partially_load(CPU) == 0 and patcher.engine.calls == ["open", "trim"]
    patcher.engine.speak("Hi", None, None, listener=Listener(on_frame=lambda *args: None))
    assert patcher.loaded_size() == patcher.model_size()


@pytest.mark.parametrize("size", [301, 999, 1000, 1e32])
def test_strong_pressure_closes_the_engine(patcher, size):
    patcher.partially_load(CPU)
    assert not take(patcher, size)
    assert not patcher.engine.opened and patcher.loaded_size() == 0 and patcher.engine.calls[-1] == "close"


def test_a_second_mild_pressure_closes_the_engine(patcher):
    patcher.partially_load(CPU)
    assert take(patcher, 250) and not take(patcher, 250)
    assert patcher.loaded_size() == 0 and patcher.partially_load(CPU) == 1000


def test_a_clone_shares_the_engine_and_returns_it(patcher):
    patcher.partially_load(CPU)
    clone = patcher.clone()
    assert clone.loaded_size() == 1000
    patcher.detach(unpatch_all=False)  # what ComfyUI says to the one that a clone replaces
    assert clone.partially_load(CPU) == 0 and patcher.engine.calls == ["open"]
    del clone
    gc.collect()
    assert patcher.engine.calls == ["open"]
    patcher.detach(True)
    assert patcher.clone().loaded_size() == 0


def test_comfyui_s_own_methods_move_no_weights(patcher):
    patcher.partially_load(CPU)
    assert patcher.patch_model(CPU) is patcher.model
    patcher.unpatch_model(CPU, unpatch_weights=True)
    assert patcher.engine.calls == ["open"] and patcher.current_loaded_device() == CPU and not patcher.is_dynamic()
    assert not [*patcher.model.parameters(), *patcher.model.buffers()]


def test_callbacks_of_other_packs_run_and_their_errors_are_logged(patcher, caplog):
    calls = []
    patcher.on_detach += [lambda *args: calls.append(args), lambda *args: 1 / 0]
    patcher.partially_load(CPU)
    assert patcher.detach(True) is patcher.model and not patcher.engine.opened
    assert calls == [(patcher, True)] and "ZeroDivisionError" in caplog.text
    patcher.on_detach.clear()


def test_nothing_is_raised_while_unloading(patcher, monkeypatch, caplog):
    patcher.partially_load(CPU)
    monkeypatch.setattr(patcher.engine, "trim", lambda: [][1])
    monkeypatch.setattr(patcher.engine, "close", lambda: 1 / 0)
    assert not take(patcher, 1)
    assert "IndexError" in caplog.text and "ZeroDivisionError" in caplog.text


def test_dropping_the_last_reference_closes_the_engine(module, make_engine):
    engine = make_engine()
    patcher = module.make_patcher(engine)
    patcher.partially_load(CPU)
    clone = patcher.clone()
    del patcher
    gc.collect()
    assert engine.opened
    del clone
    gc.collect()
    assert engine.calls == ["open", "close"]
