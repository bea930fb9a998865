"""The batch's kernels against their torch twin, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.config import SamplingParams
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable
from higgs_tts.engine.decode.kernels import batch as batch_module
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.step import decode_step, prefill

PARAMS = SamplingParams(temperature=0, max_frames=4000)
EDGES = (
    0,
    1,
    15,
    16,
    17,
    62,
    63,
    64,
    65,
    127,
    128,
    500,
    511,
    512,
    513,
    1023,
    1024,
    2047,
    2048,
    2049,
    2098,
    2099,
)  # of tiles, splits, cache


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def worst_row(ours, theirs):
    return max(relative(one, other) for one, other in zip(ours, theirs, strict=True))


def by_row(cache, row, filled):
    return cache[:, row, :, :filled].reshape(1, -1)


def begin(talker, state, prompt):
    for b in range(state.batch):
        one = prompt(talker.config, seed=b, frames=4 + 5 * b % 61)
        prefill(talker, state, b, dataclasses.replace(one, index=b, params=PARAMS))


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [2, 5, 33, 64])
def test_kernels_and_twin_agree_within_bf16_over_100_steps(wide, state_of, prompt, family, batch):
    """Both are fed the twin's codes, so that a near tie cannot lead them apart."""
    talker = wide(family, torch.bfloat16, 4, 256)
    twin, ours = (state_of(talker, batch, 256) for _ in range(2))
    ours.fused = BatchKernel(talker, ours)
    begin(talker, twin, prompt)
    begin(talker, ours, prompt)
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        decode_step(talker, twin)
        decode_step(talker, ours)
        assert torch.equal(ours.row, twin.row)
        assert relative(ours.logits, twin.logits) < 2e-2 and worst_row(ours.logits, twin.logits) < 3e-2
    for b in range(batch):
        filled = int(twin.position[b]) + 1
        assert relative(by_row(ours.keys, b, filled), by_row(twin.keys, b, filled)) < 2e-2
        assert relative(by_row(ours.values, b, filled), by_row(twin.values, b, filled)) < 2e-2
    ours.fused.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernels_are_as_close_to_fp32_as_the_twin_is(wide, state_of, prompt, family):
    """The fp32 talker holds the same weights, rounded to bf16."""
    talker = wide(family, torch.bfloat16, 4, 256)
    twin, ours = (state_of(talker, 7, 256) for _ in range(2))
    ours.fused = BatchKernel(talker, ours)
    exact = wide(family, torch.float32, 4, 256)
    for one, other in zip(exact.tensors(), talker.tensors(), strict=True):
        one.copy_(other)
    exact.embed_text.copy_(talker.embed_text)
    state = state_of(exact, 7, 256)
    for model, one in ((talker, twin), (talker, ours), (exact, state)):
        begin(model, one, prompt)
    errors = {"twin": 0.0, "kernels": 0.0}
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        state.logits.copy_(twin.logits)
        for model, one in ((talker, twin), (talker, ours), (exact, state)):
            decode_step(model, one)
        errors["twin"] = max(errors["twin"], worst_row(twin.logits, state.logits))
        errors["kernels"] = max(errors["kernels"], worst_row(ours.logits, state.logits))
    assert errors["kernels"] < 2e-2 and errors["kernels"] < 1.2 * errors["twin"], errors
    ours.fused.close()


def pose(state, positions, seed):
    """Random cache and input, every row at its position."""
    g = torch.Generator("cuda").manual_seed(seed)
    state.keys.normal_(generator=g)
    state.values.normal_(generator=g)
    state.work.x.normal_(generator=g)
    at = torch.tensor(positions, device="cuda")
    state.position.copy_(at)
    torch.add(state.slot_base, at.unsqueeze(1), out=state.slots)
    torch.gt(state.cache_index, at.view(-1, 1, 1), out=state.unfilled)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("tensor_cores", [True, False])
def test_every_length_up_to_the_last_slot(wide, state_of, monkeypatch, family, tensor_cores):
    """Rows at every edge of the kernels' own divisions; also as GPUs without bf16 tensor cores compute it."""
    if not tensor_cores:
        options = batch_module.defines
        monkeypatch.setattr(batch_module, "defines", lambda config: (*options(config), "-DNO_TENSOR_CORES"))
    talker = wide(family, torch.bfloat16, 2, 2100)
    twin, ours = (state_of(talker, len(EDGES), 2100) for _ in range(2))
    ours.fused = BatchKernel(talker, ours)
    for shift in range(2):
        positions = [EDGES[(i + 5 * shift) % len(EDGES)] for i in range(len(EDGES))]
        for state in (twin, ours):
            pose(state, positions, shift)
            talker.decode(state)
        assert relative(ours.logits, twin.logits) < 2e-2 and worst_row(ours.logits, twin.logits) < 3e-2
        for b, at in enumerate(positions):
            assert relative(by_row(ours.keys, b, at + 1), by_row(twin.keys, b, at + 1)) < 2e-2
            assert torch.equal(ours.keys[:, b, :, at + 1 :], twin.keys[:, b, :, at + 1 :])
            assert torch.equal(ours.values[:, b, :, at + 1 :], twin.values[:, b, :, at + 1 :])
    ours.fused.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_row_comes_out_the_same_whatever_stands_beside_it(wide, state_of, family):
    """One row's bits with other numbers of rows, other neighbours, another row index, another length of the cache."""
    talker = wide(family, torch.bfloat16, 3, 2100)
    g = torch.Generator("cuda").manual_seed(7)
    for at in (3, 127, 700):
        seen = set()
        keys, values = (torch.randn(3, 8, at, 128, generator=g, device="cuda").bfloat16() for _ in range(2))
        x = torch.randn(talker.config.hidden, generator=g, device="cuda").bfloat16()
        for batch, row, length in ((2, 0, 2100), (2, 1, 704), (3, 1, 704), (8, 7, 900), (33, 32, 704), (64, 40, 2100)):
            state = state_of(talker, batch, length)
            state.fused = BatchKernel(talker, state)
            positions = [(at * 31 + 97 * b * batch) % length for b in range(batch)]
            positions[row] = at
            pose(state, positions, batch + row)
            state.keys[:, row, :, :at], state.values[:, row, :, :at] = keys, values
            state.work.x[row] = x
            for _ in range(3):
                state.logits.zero_()
                talker.decode(state)
                new = state.keys[:, row, :, at].float(), state.values[:, row, :, at].float()
                seen.add(
                    torch.cat([state.logits[row].flatten(), *(one.flatten() for one in new)]).cpu().numpy().tobytes()
                )
            state.fused.close()
        assert len(seen) == 1, at


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_capture_allocates_nothing_and_gives_the_same_bits(wide, state_of, prompt, family):
    talker = wide(family, torch.bfloat16, 3, 512)
    eager, captured = (state_of(talker, 12, 512) for _ in range(2))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for state in (eager, captured):
        state.fused = BatchKernel(talker, state)
        begin(talker, state, prompt)
    with torch.cuda.stream(stream):
        captured.fused.run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    eager.fused.run()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        inside = torch.cuda.memory_stats()["allocation.all.allocated"]
        captured.fused.run()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == inside
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before <= 2  # a graph's own two random-state scalars
    for step in range(40):
        positions = [(step + 40 * b) % 512 for b in range(12)]
        pose(eager, positions, step)
        pose(captured, positions, step)
        eager.fused.run()
        graph.replay()
        assert torch.equal(eager.logits, captured.logits)
        assert torch.equal(eager.keys, captured.keys) and torch.equal(eager.values, captured.values)
    graph.reset()
    for state in (eager, captured):
        state.fused.close()


def test_what_the_kernels_cannot_serve_is_said(wide, state_of):
    talker = wide("v3", torch.float32, 1, 64)
    with pytest.raises(KernelUnavailable, match="bf16 only"):
        BatchKernel(talker, state_of(talker, 2, 64))
    talker = wide("v3", torch.bfloat16, 1, 64)
    for rows in (1, 65):
        with pytest.raises(KernelUnavailable, match="2 to 64 rows"):
            BatchKernel(talker, state_of(talker, rows, 64))
