"""Allocations on a GPU fail at places of the engine's code, or since it is full: all is given back, and it goes on."""

import random

import pytest
import torch
from higgs_tts.engine.device.memory import PrivatePool
from higgs_tts.tests.allocation_faults import PARTS, Allocations, Trials, parts, run
from higgs_tts.tests.device_memory import free_bytes

POINTS = 4
SEED = random.SystemRandom().randrange(1 << 32)


class Full(Allocations):
    """A device with `room` more bytes for torch's allocator than it has reserved."""

    def __init__(self, room: int):
        super().__init__()
        self._room, self.has_failed = room, True

    def __enter__(self):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + self._room) / total)
        return super().__enter__()

    def __exit__(self, *exc):
        torch.cuda.set_per_process_memory_fraction(1.0)
        return super().__exit__(*exc)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return parts(tmp_path_factory.mktemp("checkpoints"), "cuda:0")


@pytest.mark.parametrize("name", PARTS)
def test_an_allocation_that_fails_leaves_nothing_behind(name, made):
    sites = "python tests/faults/faults.py sites --device cuda:0"
    print(f"repeat it: {sites} --part '{name}' --points {POINTS} --seed {SEED}")
    run(name, made[name], POINTS, SEED)  # libraries keep memory from their first use on
    before = free_bytes()
    row, failing = run(name, made[name], POINTS, SEED)
    assert not failing and (row["points"] == POINTS or name == "close") and free_bytes() >= before


@pytest.mark.parametrize("name", ["open", "batch", "clip", "trim"])
def test_a_full_device_leaves_nothing_behind(name, made):
    trials = Trials(made[name])
    for megabytes in (0, 2, 6, 20, 60):
        trials.defects(Full(megabytes << 20))  # libraries keep memory from their first use on
        before = free_bytes()
        found, _ = trials.defects(Full(megabytes << 20))
        assert not found and free_bytes() >= before, f"{megabytes} MB"


def test_a_pool_that_closes_while_another_is_filled_gives_its_memory_back_afterwards():
    """A collection does that, in the middle of an open. torch 2.11 ends the process if the pool is deleted then."""
    before = free_bytes()
    one, other = PrivatePool(torch.device("cuda:0")), PrivatePool(torch.device("cuda:0"))
    with one.allocate():
        tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:0")
    one.adopt([tensor])
    with other.allocate():
        one.close()
    assert free_bytes() >= before and not tensor.numel()
