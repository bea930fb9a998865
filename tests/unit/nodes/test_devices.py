"""The choices of device and CUDA graphs, and memory that is freed on a device."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def devices(load_module):
    return load_module("devices")


def test_a_device_has_an_index(devices, comfy):
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("cuda", 1)
    assert devices.resolve_device("auto") == ("cuda:1", "") and devices.resolve_device("cpu") == ("cpu", "")
    assert devices.device_names()[0] == "auto" and devices.device_names()[-1] == "cpu"
    comfy["comfy.model_management"].get_torch_device = lambda: torch.device("mps")
    assert devices.resolve_device("auto") == ("cpu", "")


def test_a_device_of_another_machine_becomes_auto_with_a_warning(devices, load_module, caplog):
    device, warning = devices.resolve_device("cuda:7")
    assert device == "cpu" and "cuda:7" in warning and warning in caplog.text
    assert load_module("load").HiggsTTSLoadModel.validate_inputs("auto", device="cuda:7") is True


@pytest.mark.parametrize("choice, runner", [("auto", "auto"), ("on", "graph"), ("off", "eager")])
def test_graphs_name_a_runner(devices, comfy, choice, runner):
    assert devices.resolve_runner(choice) == runner
    comfy["comfy.model_management"].args.disable_cuda_graphs = True
    assert devices.resolve_runner(choice) == ("graph" if choice == "on" else "eager")


def test_memory_is_freed_on_a_gpu_only(load_module, comfy):
    memory = load_module("memory")
    memory.free_memory(300, torch.device("cpu"))
    memory.free_memory(300, torch.device("cuda", 1))
    assert comfy["comfy.model_management"].freed == [(307, torch.device("cuda", 1))]
