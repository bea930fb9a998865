"""The choices of device and CUDA graphs, and freeing memory on a device."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def devices(load_module):
    return load_module("comfy.devices")


def test_a_device_has_an_index(devices, comfy):
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 1)
    assert devices.resolve_devices("auto") == (["cuda:1"], "") and devices.resolve_devices("cpu") == (["cpu"], "")
    assert devices.device_names()[0] == "auto" and devices.device_names()[-1] == "cpu"
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("mps")
    assert devices.resolve_devices("auto") == (["cpu"], "")


def test_gpus_have_comfyui_s_names_and_one_choice_means_all(devices, comfy, monkeypatch):
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices.device_names() == ["auto", "gpu:0", "gpu:1", "gpu:2", "all GPUs", "cpu"]
    assert devices.resolve_devices("gpu:2") == devices.resolve_devices("cuda:2") == (["cuda:2"], "")
    assert devices.resolve_devices("all GPUs") == (["cuda:1", "cuda:0", "cuda:2"], ""), "ComfyUI's own first"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 0)
    assert devices.device_names() == ["auto", "cpu"]
    assert devices.resolve_devices("all GPUs") == devices.resolve_devices("gpu:0") == (["cuda:0"], "")
    assert devices.resolve_devices("gpu:1")[0] == ["cuda:0"] and "gpu:1" in devices.resolve_devices("gpu:1")[1]
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cpu")
    assert (
        devices.resolve_devices("all GPUs")[0] == ["cpu"] and "no usable GPU" in devices.resolve_devices("all GPUs")[1]
    )


def test_a_device_of_another_machine_becomes_auto_with_a_warning(devices, load_module, caplog):
    (device,), warning = devices.resolve_devices("cuda:7")
    assert device == "cpu" and "cuda:7" in warning and warning in caplog.text
    assert "cuda:7" in devices.device_names(), "or ComfyUI would refuse it"
    assert load_module("load").HiggsTTSLoadModel.validate_inputs("auto") is True


@pytest.mark.parametrize("choice, runner", [("auto", "auto"), ("on", "graph"), ("off", "eager")])
def test_the_graphs_choice_selects_a_runner(devices, comfy, choice, runner):
    assert devices.resolve_runner(choice) == runner
    comfy["comfy.model_management"].args.disable_cuda_graphs = True
    assert devices.resolve_runner(choice) == ("graph" if choice == "on" else "eager")


class TestEnginesThatSpeakTogether:
    @pytest.fixture
    def patcher(self, load_module, make_engine):
        """patcher(fails of each engine) -> the first one's patcher."""

        def make(*fails):
            first, *others = (load_module("comfy.patcher").make_patcher(make_engine(one)) for one in fails)
            first.others = tuple(others)
            return first

        return make

    def test_several_engines_are_loaded_at_once(self, load_module, comfy, patcher):
        made = patcher(None, None)
        engines = load_module("comfy.memory").load_engine(made)
        assert type(engines).__name__ == "Engines" and comfy["comfy.model_management"].loads == [made, *made.others]
        assert made.engine.opened and made.others[0].engine.opened

    def test_engines_without_room_are_left_out_and_none_left_is_an_error(self, load_module, patcher, caplog):
        made = patcher(None, torch.cuda.OutOfMemoryError("full"))
        load_module("comfy.memory").load_engine(made)
        assert made.engine.opened and not made.others[0].engine.opened and "room" in caplog.text
        with pytest.raises(torch.cuda.OutOfMemoryError):
            load_module("comfy.memory").load_engine(patcher(*2 * [torch.cuda.OutOfMemoryError("full")]))


def test_memory_is_freed_on_gpus_only(load_module, comfy):
    memory = load_module("comfy.memory")
    memory.free_memory(300, torch.device("cpu"))
    memory.free_memory(300, torch.device("cuda", 1))
    assert comfy["comfy.model_management"].freed == [(307, torch.device("cuda", 1))]
