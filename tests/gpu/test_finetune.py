"""Training on the GPU: captured steps equal eager ones to the bit, replays allocate nothing, and nothing stays."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
from higgs_tts.engine import EMBEDDED, EngineConfig
from higgs_tts.engine.checkpoint.dtypes import compute_dtype
from higgs_tts.engine.checkpoint.load import inspect
from higgs_tts.engine.finetune.network import Network
from higgs_tts.engine.finetune.rows import IGNORED, TrainingRow, together
from higgs_tts.engine.finetune.trained import planned_bytes
from higgs_tts.engine.tools.published import fill, write_hollow
from higgs_tts.tests.device_memory import free_bytes

DEVICE = torch.device("cuda:0")
ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = 16


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode(False):
        yield


def row(positions, seed):
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1024, (positions, 8), generator=g)
    is_code = torch.arange(positions) >= positions // 8
    targets = codes.roll(-1, 0).masked_fill(~is_code[:, None], IGNORED)
    return TrainingRow(torch.randint(0, 300, (positions,), generator=g), codes, is_code, targets)


def steps():
    """Three steps of two sizes each, one of them with fewer rows than its batch."""
    sizes = ((200, 500), (130, 140, 510), (250, 400, 390))
    return [together([row(size, 10 * at + size) for size in one]) for at, one in enumerate(sizes)]


def network_of(folder, dtype="bf16", runner="auto", codes_in_full=False):
    config = EngineConfig(str(folder), device="cuda:0", dtype=dtype, runner=runner)
    given = inspect(folder), config, DEVICE, compute_dtype(dtype, DEVICE), range(300), RANK, 2.0 * RANK, 1.0
    network = Network(*given, codes_in_full)
    network.start(0)
    return network


def learned(folder, dtype="bf16", runner="auto", codes_in_full=False):
    """Return (losses, numbers, moments) after the three steps, and the network's note."""
    with network_of(folder, dtype, runner, codes_in_full) as network:
        losses = [network.learn(groups, 1e-3, at) for at, groups in enumerate(steps(), 1)]
        held = [tensor.clone() for tensor in (network.numbers, network.first, network.second)]
        return losses, held, network.note


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2", "embedded"])
def test_captured_steps_equal_eager_ones_to_the_bit(folders, family, dtype):
    """In fp32 the wide checkpoints are so large that layers are computed again."""
    folder = EMBEDDED if family == "embedded" else folders[family]
    losses, held, note = learned(folder, dtype)
    eager_losses, eager, _ = learned(folder, dtype, "eager")
    assert not note and losses == eager_losses and losses[-1].codes < losses[0].codes + 1
    assert all(torch.equal(a, b) for a, b in zip(held, eager, strict=True))
    again_losses, again, _ = learned(folder, dtype)
    assert losses == again_losses and torch.equal(held[0], again[0])


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_captured_steps_that_train_the_codes_in_full_equal_eager_ones(folders, family, dtype):
    losses, held, note = learned(folders[family], dtype, codes_in_full=True)
    eager_losses, eager, _ = learned(folders[family], dtype, "eager", codes_in_full=True)
    assert not note and losses == eager_losses
    assert all(torch.equal(a, b) for a, b in zip(held, eager, strict=True))


@pytest.mark.parametrize(
    ("dtype", "left", "codes_in_full"), [("int8", 8, False), ("int8", 8, True), ("int4", 6, False), ("int4", 6, True)]
)
def test_small_cards_hold_a_training_of_the_published_size(tmp_path, dtype, left, codes_in_full):
    """The rest of the card is taken, and steps of both kinds are captured."""
    write_hollow(tmp_path, "v3")
    taken = torch.empty(max(0, free_bytes() - (left << 30)), dtype=torch.uint8, device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    config = EngineConfig(str(tmp_path), dtype=dtype)
    planned = planned_bytes(inspect(tmp_path), config, DEVICE, torch.bfloat16, RANK, codes_in_full)
    with network_of(tmp_path, dtype, codes_in_full=codes_in_full) as network:
        with torch.no_grad():
            fill(network.talker)
        network.start(0)
        for step, groups in enumerate((*steps(), [[row(2040, 1)]]), 1):
            network.learn(groups, 1e-5, step)
        network.losses(steps()[0])
        peak, note = torch.cuda.max_memory_allocated() - taken.numel(), network.note
    del network
    del taken
    print(f"{dtype}, codes in full: {codes_in_full}: {peak / 2**30:.2f} GiB, planned {planned / 2**30:.2f}")
    assert not note and peak < left << 30 and planned < left << 30


def test_replayed_steps_allocate_nothing(folders):
    with network_of(folders["v3"]) as network:
        groups = steps()[2]
        for step in (1, 2):
            network.learn(groups, 1e-3, step)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats(DEVICE)["allocation.all.allocated"]
        for step in range(3, 8):
            network.learn(groups, 1e-3, step)
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats(DEVICE)["allocation.all.allocated"] == before


@pytest.mark.parametrize("runner", ["auto", "eager"])
def test_closing_gives_every_byte_back(folders, runner):
    free = []
    for _ in range(3):
        with network_of(folders["v3"], runner=runner) as network:
            for at, groups in enumerate(steps(), 1):
                network.learn(groups, 1e-3, at)
            network.losses(steps()[0])
        del network
        free.append(free_bytes())
    assert free[1] == free[2] == free[0]  # the first time, libraries load what the process keeps


def test_an_error_in_a_step_leaves_nothing(folders, monkeypatch):
    learned(folders["v3"])
    free = free_bytes()
    with pytest.raises(KeyboardInterrupt), network_of(folders["v3"]) as network:
        network.learn(steps()[0], 1e-3, 1)
        monkeypatch.setattr(Network, "accumulate", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        network.learn(steps()[1], 1e-3, 2)
    del network
    assert free_bytes() == free


def test_planned_bytes_are_about_what_it_takes(folders):
    learned(folders["v3"])
    free = free_bytes()
    with network_of(folders["v3"]) as network:
        network.learn(together([row(1020, 1)]), 1e-3, 1)
        taken = free - torch.cuda.mem_get_info()[0]
        planned = planned_bytes(inspect(folders["v3"]), EngineConfig("", dtype="bf16"), DEVICE, torch.bfloat16, RANK)
    assert 0.6 * taken < planned < 2.0 * taken, (taken >> 20, planned >> 20)


SCRIPT = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    import runpy
    runpy.run_path(sys.argv[1] + "/tests/faults/pack.py")
    import torch
    from higgs_tts.tests.device_memory import free_bytes
    from higgs_tts.tests.gpu import test_finetune as test
    losses, held, note = test.learned(sys.argv[2])
    del held
    free = free_bytes()
    again, held, note = test.learned(sys.argv[2])
    del held
    print(json.dumps([losses, note, free - free_bytes(), losses == again]))
"""


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators_learn_the_same_and_keep_nothing(folders, allocator):
    """cudaMallocAsync has no private pools: steps are eager there, and a sentence says so."""
    env = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": allocator}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(ROOT), str(folders["v3"])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    losses, note, kept, is_same = json.loads(done.stdout.splitlines()[-1])
    assert kept == 0 and is_same
    assert ("no private memory pools" in note) == ("Async" in allocator)
    assert losses == [[*one] for one in learned(folders["v3"])[0]]
