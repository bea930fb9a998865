"""Captured against eager, bit for bit, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.kernels.sample import SampleKernel
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.prompts import Prefill
from higgs_tts.engine.device.graph import GraphError
from higgs_tts.engine.device.memory import PrivatePool

CUDA = torch.device("cuda", 0)
LAYERS = 3


def runner_of(talker, state, kernels):
    """Return torch's ops, or our kernels for a state of that many rows, as in a runner."""
    if not kernels:
        return ModelRunner(talker, state)
    kind = SingleKernel if state.batch == 1 else BatchKernel
    return ModelRunner(talker, state, kind(talker, state), SampleKernel(talker, state))


class Pair:
    """One talker with two states, one stepped eagerly, one by graph replay, compared after every step."""

    def __init__(self, talker, make_state, batch, context, kernels=False):
        self.talker, self.pool = talker, PrivatePool(CUDA)
        self.states = [make_state(talker, batch, context) for _ in range(2)]
        self.runners = [runner_of(talker, state, kernels) for state in self.states]
        self.runners[1].capture(self.pool.capture_stream())

    def start(self, prompts, params, limits=None):
        for state in self.states:
            for row, one in enumerate(prompts):
                sequence = dataclasses.replace(one, index=row, params=params)
                Prefill(self.talker).begin(state, [(row, sequence)]).complete()
            if limits:
                state.delay.max_generated.copy_(torch.tensor(limits))

    def first_difference(self, steps):
        """Return the first step after which logits or codes differ, or None."""
        a, b = self.states
        for step in range(steps):
            for runner in self.runners:
                runner.step()
            pairs = (a.logits, b.logits), (a.delay.output, b.delay.output), (a.delay.done, b.delay.done)
            if not all(torch.equal(one, other) for one, other in pairs):
                return step
        return None if torch.equal(a.delay.outputs[:, :steps], b.delay.outputs[:, :steps]) else steps

    def close(self):
        for runner in self.runners:
            runner.close()
        self.states = self.runners = self.talker = None
        self.pool.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_graph_equals_eager_bit_for_bit(wide, state_of, prompt, family, dtype, batch):
    talker = wide(family, dtype, LAYERS, 640)
    three_sequences(Pair(talker, state_of, batch, 640), prompt, batch)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_the_graph_of_our_kernels_equals_eager_bit_for_bit(wide, state_of, prompt, family, batch):
    talker = wide(family, torch.bfloat16, LAYERS, 640)
    three_sequences(Pair(talker, state_of, batch, 640, kernels=True), prompt, batch)


def three_sequences(pair, prompt, batch):
    """Run in one state: a plain sequence, one with rows that finish early, and one up to the cache's last slot."""
    talker = pair.talker
    config = talker.config
    for turn, steps in enumerate((500, 120, 640)):
        prompts = [prompt(config, seed=10 * turn + b, frames=8 + 3 * b) for b in range(batch)]
        limits = [20 + 9 * b for b in range(batch)] if turn == 1 else None
        pair.start(prompts, SamplingParams(seed=turn, max_frames=5000), limits)
        assert pair.first_difference(steps) is None
    lengths = pair.states[1].cache.prompt_length + pair.states[1].delay.num_generated
    assert lengths.tolist() == [640] * batch and bool(pair.states[1].delay.done.all())
    pair.close()


def test_a_stale_output_at_the_first_step_is_detected(wide, state_of, prompt):
    """Shows that the comparison can fail: a graph whose first replay embeds the previous sequence's output."""
    talker = wide("v3", torch.bfloat16, LAYERS, 256)
    pair = Pair(talker, state_of, 1, 256)
    pair.start([prompt(talker.config)], SamplingParams())
    pair.runners[1].step()  # one frame ahead, then everything but the cache put back: the cache holds a stale slot
    pair.start([prompt(talker.config)], SamplingParams())
    assert pair.first_difference(10) is None  # a clean start recovers
    pair.start([prompt(talker.config)], SamplingParams())
    stale, step = pair.states[1], pair.runners[1].step

    def stale_first():
        kept = stale.logits.clone()
        stale.logits.copy_(kept.roll(1, -1))
        pair.runners[1].step = step
        step()

    pair.runners[1].step = stale_first
    assert pair.first_difference(10) == 0
    pair.close()


def test_a_capture_that_differs_from_the_step_is_refused(wide, state_of, monkeypatch):
    talker = wide("v3", torch.bfloat16, LAYERS, 256)
    state = state_of(talker, 2, 256)
    step = ModelRunner.step
    copies = [(tensor, tensor.clone()) for tensor in state.tensors()]

    def skewed(runner):
        step(runner)
        if torch.cuda.is_current_stream_capturing():
            runner.state.logits[:, 3].add_(1e-3)

    monkeypatch.setattr(ModelRunner, "step", skewed)
    pool = PrivatePool(CUDA)
    with pytest.raises(GraphError, match="differs from an eager one in logits"):
        ModelRunner(talker, state).capture(pool.capture_stream())
    live = {tensor.data_ptr() for tensor in (state.cache.keys, state.cache.values, state.cache.queries)}
    assert all(t.data_ptr() in live or torch.equal(t.nan_to_num(), c.nan_to_num()) for t, c in copies)
    pool.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize(("way", "batch"), [("bf16", 4), ("fp32", 4), ("kernels", 1), ("kernels", 4)])
def test_a_step_allocates_nothing_eager_or_captured(wide, state_of, prompt, monkeypatch, family, way, batch):
    talker = wide(family, torch.float32 if way == "fp32" else torch.bfloat16, 2, 512)
    state, captured = (state_of(talker, batch, 512) for _ in range(2))
    runners = [runner_of(talker, one, way == "kernels") for one in (state, captured)]
    for row in range(batch):
        runners[0].prefill([(row, dataclasses.replace(prompt(talker.config, seed=row), index=row))])
    eager = runners[0]
    eager.step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    eager.step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    pool = PrivatePool(CUDA)
    counts = []
    step = ModelRunner.step

    def counted(runner):
        first = torch.cuda.memory_stats()["allocation.all.allocated"]
        step(runner)
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"] - first)

    monkeypatch.setattr(ModelRunner, "step", counted)
    runners[1].capture(pool.capture_stream())
    assert counts[-3] == 0, "the capture allocated"  # warm-ups, then the capture, then the proof's two eager steps
    assert counts[-2:] == [0, 0]
    for runner in runners:
        runner.close()
    pool.close()
