"""HiggsPatcher: an engine on its device, whole or not at all, and nothing raised while it leaves."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError

CPU = torch.device("cpu")


@pytest.fixture
def module(room):
    return room("patcher")


@pytest.fixture
def patcher(module, make_engine):
    return module.make_patcher(make_engine())


def test_takes_nothing_before_it_is_loaded(patcher):
    assert patcher.engine.calls == []
    assert (patcher.model_size(), patcher.loaded_size()) == (1000, 0)
    assert weakref.ref(patcher.model)() is patcher.model and not list(patcher.model.state_dict())


@pytest.mark.parametrize("budget", [0, 0.1, -5.0, 1e32])
def test_opens_whole_whatever_the_budget(patcher, budget):
    assert patcher.partially_load(CPU, budget) == 1000
    assert patcher.engine.opened and patcher.loaded_size() == 1000
    assert patcher.partially_load(CPU, budget) == 0 and patcher.engine.calls == ["open"]


@pytest.mark.parametrize("fault", [HiggsError("no"), torch.cuda.OutOfMemoryError("no"), KeyboardInterrupt()])
def test_a_failed_opening_leaves_nothing_behind(module, make_engine, fault):
    patcher = module.make_patcher(make_engine(fails=fault))
    with pytest.raises(type(fault)):
        patcher.partially_load(CPU)
    assert patcher.engine.calls == ["open", "close"] and patcher.loaded_size() == 0


def test_only_true_means_leave(patcher):
    patcher.partially_load(CPU)
    patcher.detach(unpatch_all=False)
    assert patcher.partially_unload(CPU, 10) == 0 and patcher.engine.opened
    assert patcher.detach(True) is patcher.model
    assert not patcher.engine.opened and patcher.loaded_size() == 0


def test_movers_move_nothing(patcher):
    patcher.partially_load(CPU)
    patcher.load(CPU, lowvram_model_memory=1)
    patcher.patch_model(CPU, 0)
    patcher.unpatch_model(CPU, unpatch_weights=True)
    assert patcher.engine.calls == ["open"] and patcher.current_loaded_device() == CPU and not patcher.is_dynamic()


def test_nothing_is_raised_while_unloading(patcher, monkeypatch, caplog):
    monkeypatch.setattr(patcher.engine, "close", lambda: 1 / 0)
    assert patcher.detach(True) is patcher.model
    assert "could not free" in caplog.text and "ZeroDivisionError" in caplog.text


def test_the_last_reference_closes_it(module, make_engine):
    engine = make_engine()
    patcher = module.make_patcher(engine)
    patcher.partially_load(CPU)
    clone = type(patcher)(patcher.model, CPU, CPU, 1000)  # what ModelPatcher.clone does
    del patcher
    gc.collect()
    assert engine.opened
    del clone
    gc.collect()
    assert engine.calls == ["open", "close"]


def test_room_is_made_on_a_gpu_only(module, comfy):
    module.make_room(300, CPU)
    module.make_room(300, torch.device("cuda", 1))
    assert comfy["comfy.model_management"].freed == [(307, torch.device("cuda", 1))]


def test_errors_begin_with_the_node(module):
    with pytest.raises(HiggsError, match=r"^Higgs Speak: the text is empty"), module.told_by("Higgs Speak"):
        raise HiggsError("the text is empty")


def test_out_of_memory_stays_what_comfyui_frees_upon(module):
    held = []

    def fill():
        scratch = torch.zeros(3)
        held.append(weakref.ref(scratch))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    with pytest.raises(torch.cuda.OutOfMemoryError) as caught, module.told_by("Higgs Speak"):
        fill()
    assert str(caught.value).startswith("Higgs Speak: ") and "smaller context" in str(caught.value)
    assert "2 GiB" in str(caught.value) and "more" not in str(caught.value)
    assert held[0]() is None, "the failed frame keeps its tensors alive"


def test_only_that_is_caught(module, interrupted):
    for kind in (interrupted, ValueError, torch.AcceleratorError):
        with pytest.raises(kind, match=r"^as it was"), module.told_by("Higgs Speak"):
            raise kind("as it was")


def test_a_device_has_an_index(module, comfy):
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 1)
    assert module.device_of("auto") == "cuda:1" and module.device_of("cpu") == "cpu"
    assert module.device_names()[0] == "auto" and module.device_names()[-1] == "cpu"
