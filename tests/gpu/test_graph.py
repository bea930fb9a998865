"""Captured against eager, bit for bit, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.config import SamplingParams
from higgs_tts.engine.decode.executors import graph, make_executor
from higgs_tts.engine.decode.executors.graph import GraphError, GraphExecutor
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.kernels.sample import SampleKernel
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.step import prefill
from higgs_tts.engine.memory import PrivatePool

CUDA = torch.device("cuda", 0)
LAYERS = 3


def take_kernels(talker, state):
    """Our kernels for a state of that many rows, as a runner has them."""
    state.fused = (SingleKernel if state.batch == 1 else BatchKernel)(talker, state)
    state.front = SampleKernel(talker, state)


class Pair:
    """One talker, two states: one stepped eagerly, one by graph replay, compared after every step."""

    def __init__(self, talker, make_state, batch, context, kernels=False):
        self.talker, self.pool = talker, PrivatePool(CUDA)
        self.states = [make_state(talker, batch, context) for _ in range(2)]
        for state in self.states if kernels else ():
            take_kernels(talker, state)
        names = ("eager", "graph")
        self.executors = [make_executor(n, talker, s, self.pool) for n, s in zip(names, self.states, strict=True)]

    def start(self, prompts, params, limits=None):
        for state in self.states:
            for b, one in enumerate(prompts):
                prefill(self.talker, state, b, dataclasses.replace(one, index=b, params=params))
            if limits:
                state.row_limit.copy_(torch.tensor(limits))

    def first_difference(self, steps):
        """The first step after which logits or codes differ, or None."""
        a, b = self.states
        for step in range(steps):
            for executor in self.executors:
                executor.step()
            if not (torch.equal(a.logits, b.logits) and torch.equal(a.row, b.row) and torch.equal(a.done, b.done)):
                return step
        return None if torch.equal(a.rows[:, :steps], b.rows[:, :steps]) else steps

    def close(self):
        for executor in self.executors:
            executor.close()
        for state in self.states:
            for kernel in filter(None, (state.fused, state.front)):
                kernel.close()
        self.states = self.executors = self.talker = None
        self.pool.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_graph_equals_eager_bit_for_bit(wide, state_of, prompt, family, dtype, batch):
    talker = wide(family, dtype, LAYERS, 640)
    three_utterances(Pair(talker, state_of, batch, 640), prompt, batch)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_the_graph_of_our_kernels_equals_eager_bit_for_bit(wide, state_of, prompt, family, batch):
    talker = wide(family, torch.bfloat16, LAYERS, 640)
    three_utterances(Pair(talker, state_of, batch, 640, kernels=True), prompt, batch)


def three_utterances(pair, prompt, batch):
    """In the same state: a plain one, one with rows that finish early, and one up to the cache's last slot."""
    talker = pair.talker
    config = talker.config
    for utterance, steps in enumerate((500, 120, 640)):
        prompts = [prompt(config, seed=10 * utterance + b, frames=8 + 3 * b) for b in range(batch)]
        limits = [20 + 9 * b for b in range(batch)] if utterance == 1 else None
        pair.start(prompts, SamplingParams(seed=utterance, max_frames=5000), limits)
        assert pair.first_difference(steps) is None
    lengths = pair.states[1].prompt_length + pair.states[1].written
    assert lengths.tolist() == [640] * batch and bool(pair.states[1].done.all())
    pair.close()


def test_a_stale_feedback_row_at_the_first_step_is_seen(wide, state_of, prompt):
    """The comparison above can fail: a graph whose first replay embeds the previous owner's row."""
    talker = wide("v3", torch.bfloat16, LAYERS, 256)
    pair = Pair(talker, state_of, 1, 256)
    pair.start([prompt(talker.config)], SamplingParams())
    pair.executors[1].step()  # one frame ahead, then everything but the cache put back: the cache holds a stale row
    pair.start([prompt(talker.config)], SamplingParams())
    assert pair.first_difference(10) is None  # a clean start recovers
    pair.start([prompt(talker.config)], SamplingParams())
    stale, step = pair.states[1], pair.executors[1].step

    def stale_first():
        kept = stale.logits.clone()
        stale.logits.copy_(kept.roll(1, -1))
        pair.executors[1].step = step
        step()

    pair.executors[1].step = stale_first
    assert pair.first_difference(10) == 0
    pair.close()


def test_a_capture_that_does_something_else_is_refused(wide, state_of, monkeypatch):
    talker = wide("v3", torch.bfloat16, LAYERS, 256)
    state = state_of(talker, 2, 256)
    step = graph.decode_step
    copies = [(tensor, tensor.clone()) for tensor in state.tensors()]

    def skewed(talker, state):
        step(talker, state)
        if torch.cuda.is_current_stream_capturing():
            state.logits[:, 3].add_(1e-3)

    monkeypatch.setattr(graph, "decode_step", skewed)
    pool = PrivatePool(CUDA)
    with pytest.raises(GraphError, match="differs from an eager one in logits"):
        GraphExecutor(talker, state, pool.capture_stream())
    live = {state.keys.data_ptr(), state.values.data_ptr()}
    assert all(t.data_ptr() in live or torch.equal(t.nan_to_num(), c.nan_to_num()) for t, c in copies)
    pool.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize(("way", "batch"), [("bf16", 4), ("fp32", 4), ("kernels", 1), ("kernels", 4)])
def test_a_step_allocates_nothing_eager_or_captured(wide, state_of, prompt, family, way, batch):
    talker = wide(family, torch.float32 if way == "fp32" else torch.bfloat16, 2, 512)
    state, captured = (state_of(talker, batch, 512) for _ in range(2))
    if way == "kernels":
        take_kernels(talker, state)
        take_kernels(talker, captured)
    for b in range(batch):
        prefill(talker, state, b, dataclasses.replace(prompt(talker.config, seed=b), index=b))
    eager = make_executor("eager", talker, state, None)
    eager.step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    eager.step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    pool = PrivatePool(CUDA)
    counts = []
    step = graph.decode_step

    def counted(talker, state):
        first = torch.cuda.memory_stats()["allocation.all.allocated"]
        step(talker, state)
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"] - first)

    graph.decode_step = counted
    try:
        executor = GraphExecutor(talker, captured, pool.capture_stream())
    finally:
        graph.decode_step = step
    assert counts[-3] == 0, "the capture allocated"  # warm-ups, then the capture, then the proof's two eager steps
    assert counts[-2:] == [0, 0]
    executor.close()
    pool.close()
