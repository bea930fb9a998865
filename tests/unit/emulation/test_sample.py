"""The sampling kernel, in the harness of its GPU test."""

import importlib.util
import pathlib

import pytest
import torch
from higgs_tts.engine.decode.kernels import sample
from higgs_tts.engine.decode.state import DecodeState
from higgs_tts.engine.talker import build_talker

GPU_TEST = pathlib.Path(__file__).resolve().parents[2] / "gpu" / "test_sample.py"


@pytest.fixture
def gpu_test(emulate, monkeypatch):
    """tests/gpu/test_sample.py with the emulated kernel in place of the launched one."""
    spec = importlib.util.spec_from_file_location("gpu_test_sample", GPU_TEST)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SampleKernel", lambda talker, state: Emulated(emulate, talker, state))
    return module


class Emulated:
    def __init__(self, emulate, talker, state):
        window = state.sampler.sizes["W"] if talker.family.resamples_repeats else 1
        options = sample.defines(talker.config, talker.dtype, window)
        threads = 32 * talker.config.codebooks
        self._run = emulate(sample.SOURCE, "sample_step", "SampleArgs", threads, options)
        self._start = emulate(sample.SOURCE, "start_row", "StartArgs", threads, options)
        self._argument = sample.arguments(talker, state)

    def run(self, rows):
        self._run(self._argument, rows)

    def start_row(self, *given):
        self._start(sample.start_arguments(self._argument, *given), 1)

    def close(self):
        """Do nothing: no resources are held."""


@pytest.fixture
def room(gpu_test, small):
    """make(family, batch, dtype, seed) -> the GPU test's harness, on a small model."""

    def wide(family, dtype, layers, context):
        config = small.config(family)
        talker = build_talker(config, {k: v.to(dtype) for k, v in small.tensors(config).items()}, context)
        # Sums of eight small integers are the same in any order.
        talker.embed_codes.copy_(torch.randint(-8, 8, talker.embed_codes.shape))
        return talker

    def state_of(talker, batch, context):
        return DecodeState(talker.config, batch, context, talker.device, talker.dtype)

    return lambda *settings: gpu_test.Room(wide, state_of, *settings)


@pytest.mark.parametrize(
    ("family", "dtype"), [("v3", torch.bfloat16), ("v2", torch.float32)], ids=["v3-bf16", "v2-fp32"]
)
@torch.inference_mode()
def test_every_buffer_equals_the_twin_s(room, family, dtype):
    room, ended = room(family, 4, dtype, 5), 0
    for frame in range(160):
        if frame % 8 == 0:
            ended += int(room.twin.delay.ended.sum())
            for b in room.twin.delay.done.nonzero()[:, 0].tolist():
                room.start(b)
        room.plant(ends=0.1)
        assert room.step() == [], frame
    assert ended > 0


@pytest.mark.parametrize("family", ["v3", "v2"])
@torch.inference_mode()
def test_rows_with_nan_logits_are_flagged_as_by_the_twin(gpu_test, room, family):
    gpu_test.flags_are_the_twin_s(room(family, 6, torch.float32, 5), 40)
