"""HiggsPatcher: an engine that leaves in two steps, piece by piece never, and nothing raised while it does."""

from __future__ import annotations

import gc
import threading
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
    assert patcher.engine.calls == ["open"]
    assert patcher.detach(True) is patcher.model
    assert not patcher.engine.opened and patcher.loaded_size() == 0


def take(patcher, size):
    """What ComfyUI does to the one model it has when `size` bytes are wanted: true when its entry stays."""
    if size < patcher.loaded_size() and patcher.partially_unload(patcher.offload_device, size) >= size:
        return True
    patcher.detach(True)
    return False


def test_mild_pressure_takes_the_cache_and_leaves_the_weights(patcher):
    patcher.partially_load(CPU)
    assert take(patcher, 250)
    assert patcher.engine.calls == ["open", "trim"] and patcher.current_loaded_device() == CPU
    assert (patcher.loaded_size(), patcher.model_size()) == (700, 1000), "room is made for what is missing, no more"


def test_a_trimmed_engine_is_loaded_as_it_is_and_whole_after_speech(patcher):
    patcher.partially_load(CPU)
    patcher.partially_unload(CPU, 1)
    assert patcher.partially_load(CPU) == 0 and patcher.engine.calls == ["open", "trim"]
    patcher.engine.speak("Hi", None, None, on_frame=lambda *told: None)
    assert patcher.loaded_size() == patcher.model_size()


@pytest.mark.parametrize("size", [301, 999, 1000, 1e32])
def test_strong_pressure_takes_all(patcher, size):
    patcher.partially_load(CPU)
    assert not take(patcher, size)
    assert not patcher.engine.opened and patcher.loaded_size() == 0 and patcher.engine.calls[-1] == "close"


def test_a_second_mild_pressure_takes_the_rest(patcher):
    patcher.partially_load(CPU)
    assert take(patcher, 250) and not take(patcher, 250)
    assert patcher.loaded_size() == 0 and patcher.partially_load(CPU) == 1000


def test_a_clone_takes_over_and_gives_back(patcher):
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


def test_movers_move_nothing(patcher):
    patcher.partially_load(CPU)
    patcher.load(CPU, lowvram_model_memory=1)
    patcher.patch_model(CPU, 0)
    patcher.unpatch_model(CPU, unpatch_weights=True)
    assert patcher.engine.calls == ["open"] and patcher.current_loaded_device() == CPU and not patcher.is_dynamic()


def test_nothing_is_raised_while_unloading(patcher, monkeypatch, caplog):
    patcher.partially_load(CPU)
    monkeypatch.setattr(patcher.engine, "trim", lambda: [][1])
    monkeypatch.setattr(patcher.engine, "close", lambda: 1 / 0)
    assert not take(patcher, 1)
    assert "could not free its cache" in caplog.text and "IndexError" in caplog.text
    assert "could not free all of its memory" in caplog.text and "ZeroDivisionError" in caplog.text


def test_the_last_reference_closes_it(module, make_engine):
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


@pytest.fixture
def busy(module):
    """A thread in which a node works, asks whether to stop, and must not come back."""
    asks, ended = threading.Event(), []

    def node():
        with module.told_by("Higgs Speak"):
            asks.set()
            while True:
                module.check_interrupt()
        ended.append(True)

    worker = threading.Thread(target=node, daemon=True)
    worker.start()
    asks.wait()
    yield
    module.take_last_turn()
    assert not module._turn.acquire(blocking=False), "the next node must wait for good"
    assert worker.is_alive() and not ended


def test_the_end_of_the_process_stops_a_node_where_it_asks(busy):
    """What is to be seen is in the fixture."""


def test_downloads_and_nodes_stop_with_the_server(module, comfy, busy):
    assert not module.is_interrupted()
    comfy["server"].running = False
    assert module.is_interrupted()
    assert module._turn.acquire(timeout=60), "the node has not given way"
    module._turn.release()


def test_scripts_without_a_server_are_not_taken_for_one_that_ended(module, comfy):
    comfy["server"].running = False
    with module.told_by("Higgs Speak"):
        module.check_interrupt()
        assert not module.is_interrupted()


def test_a_device_has_an_index(module, comfy):
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 1)
    assert module.device_of("auto") == ("cuda:1", "") and module.device_of("cpu") == ("cpu", "")
    assert module.device_names()[0] == "auto" and module.device_names()[-1] == "cpu"
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("mps")
    assert module.device_of("auto") == ("cpu", "")


def test_a_device_of_another_machine_becomes_auto_with_a_warning(module, room, caplog):
    device, note = module.device_of("cuda:7")
    assert device == "cpu" and "cuda:7 is not on this machine, so cpu is used" in note and note in caplog.text
    assert room("load").HiggsTTSLoadModel.validate_inputs("auto", device="cuda:7") is True


@pytest.mark.parametrize("choice, runner", [("auto", "auto"), ("on", "graph"), ("off", "eager")])
def test_graphs_name_a_runner(module, comfy, choice, runner):
    assert module.runner_of(choice) == runner
    comfy["comfy.model_management"].args.disable_cuda_graphs = True
    assert module.runner_of(choice) == ("graph" if choice == "on" else "eager")
