"""The batch's kernels against their torch twin, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable
from higgs_tts.engine.decode.kernels import batch as batch_module
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.prompts import Prefill

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


def begin(backend, prompt):
    talker, state = backend.talker, backend.state
    for row in range(state.batch):
        one = prompt(talker.config, seed=row, frames=4 + 5 * row % 61)
        Prefill(talker).begin(state, [(row, dataclasses.replace(one, index=row, params=PARAMS))]).complete()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize(
    ("batch", "weights"),
    [
        (2, ""),
        (5, ""),
        (33, ""),
        (64, ""),
        (100, ""),
        (5, "int8"),
        (64, "int8"),
        (5, "q8_0"),
        (64, "q8_0"),
        (12, "int4"),
        (33, "int4"),
    ],
)
def test_kernels_and_twin_agree_within_bf16_over_100_steps(wide, state_of, prompt, family, batch, weights):
    """Both get the twin's codes, so that a near tie cannot make them diverge."""
    talker = wide(family, torch.bfloat16, 4, 256, weights)
    if batch > BatchKernel.most_rows(talker):
        pytest.skip("this GPU's kernels have fewer rows")
    twin, ours = (state_of(talker, batch, 256) for _ in range(2))
    backends = ModelRunner(talker, twin), ModelRunner(talker, ours, BatchKernel(talker, ours))
    for backend in backends:
        begin(backend, prompt)
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        for backend in backends:
            backend.step()
        assert torch.equal(ours.delay.output, twin.delay.output)
        assert relative(ours.logits, twin.logits) < 2e-2 and worst_row(ours.logits, twin.logits) < 3e-2
    for row in range(batch):
        filled = int(twin.cache.position[row]) + 1
        for one, other in ((ours.cache.keys, twin.cache.keys), (ours.cache.values, twin.cache.values)):
            assert relative(by_row(one, row, filled), by_row(other, row, filled)) < 2e-2
        first = int(twin.cache.prompt_length[row])
        kept, expected = (state.cache.row_queries(row, first, filled) for state in (ours, twin))
        assert expected.any(-1).all() and relative(kept, expected) < 2e-2
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernels_are_as_close_to_fp32_as_the_twin_is(wide, state_of, prompt, family):
    """The fp32 talker holds the same weights, rounded to bf16."""
    talker = wide(family, torch.bfloat16, 4, 256)
    twin, ours = (state_of(talker, 7, 256) for _ in range(2))
    exact = wide(family, torch.float32, 4, 256)
    for one, other in zip(exact.tensors(), talker.tensors(), strict=True):
        one.copy_(other)
    exact.embed_text.copy_(talker.embed_text)
    state = state_of(exact, 7, 256)
    backends = (
        ModelRunner(talker, twin),
        ModelRunner(talker, ours, BatchKernel(talker, ours)),
        ModelRunner(exact, state),
    )
    for backend in backends:
        begin(backend, prompt)
    errors = {"twin": 0.0, "kernels": 0.0}
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        state.logits.copy_(twin.logits)
        for backend in backends:
            backend.step()
        errors["twin"] = max(errors["twin"], worst_row(twin.logits, state.logits))
        errors["kernels"] = max(errors["kernels"], worst_row(ours.logits, state.logits))
    assert errors["kernels"] < 2e-2 and errors["kernels"] < 1.2 * errors["twin"], errors
    for backend in backends:
        backend.close()


def pose(state, positions, seed):
    """Set random cache and input, every row live at its position."""
    g = torch.Generator("cuda").manual_seed(seed)
    state.cache.keys.normal_(generator=g)
    state.cache.values.normal_(generator=g)
    state.work.x.normal_(generator=g)
    state.delay.done.fill_(False)
    state.cache.prompt_length.copy_(torch.tensor(positions))
    state.cache.seek(torch.zeros_like(state.cache.prompt_length))
    assert state.cache.position.tolist() == list(positions)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("tensor_cores", [True, False])
def test_kernels_and_twin_agree_at_every_length(wide, state_of, monkeypatch, family, tensor_cores):
    """Rows at every edge of the kernels' own divisions, also as GPUs without bf16 tensor cores compute it."""
    if not tensor_cores:
        options = batch_module.defines
        monkeypatch.setattr(batch_module, "defines", lambda *given: (*options(*given), "-DNO_TENSOR_CORES"))
    talker = wide(family, torch.bfloat16, 2, 2100)
    twin, ours = (state_of(talker, len(EDGES), 2100) for _ in range(2))
    kernels = BatchKernel(talker, ours)
    for shift in range(2):
        positions = [EDGES[(i + 5 * shift) % len(EDGES)] for i in range(len(EDGES))]
        for state in (twin, ours):
            pose(state, positions, shift)
        talker.decode(twin)
        kernels.run()
        assert relative(ours.logits, twin.logits) < 2e-2 and worst_row(ours.logits, twin.logits) < 3e-2
        one, other = ours.cache, twin.cache
        for row, at in enumerate(positions):
            assert relative(by_row(one.keys, row, at + 1), by_row(other.keys, row, at + 1)) < 2e-2
            assert torch.equal(one.keys[:, row, :, at + 1 :], other.keys[:, row, :, at + 1 :])
            assert torch.equal(one.values[:, row, :, at + 1 :], other.values[:, row, :, at + 1 :])
    kernels.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_row_does_not_depend_on_its_neighbours(wide, state_of, family):
    """Compares a row's bits for other row counts, neighbours (some done), row indices and cache lengths."""
    talker = wide(family, torch.bfloat16, 3, 2100)
    g = torch.Generator("cuda").manual_seed(7)
    shapes = [(2, 0, 2100), (2, 1, 704), (3, 1, 704), (8, 7, 900), (33, 32, 704), (64, 40, 2100)]
    if BatchKernel.most_rows(talker) > 64:
        shapes += [(70, 69, 704), (128, 100, 2100)]
    for at in (3, 127, 700):
        seen = set()
        keys, values = (torch.randn(3, 8, at, 128, generator=g, device="cuda").bfloat16() for _ in range(2))
        x = torch.randn(talker.config.hidden, generator=g, device="cuda").bfloat16()
        for batch, row, length in shapes:
            state = state_of(talker, batch, length)
            kernels, cache = BatchKernel(talker, state), state.cache
            positions = [(at * 31 + 97 * b * batch) % length for b in range(batch)]
            positions[row] = at
            pose(state, positions, batch + row)
            cache.keys[:, row, :, :at], cache.values[:, row, :, :at] = keys, values
            state.work.x[row] = x
            state.delay.done[torch.arange(batch, device="cuda") % 3 == (row + 1) % 3] = True
            for _ in range(3):
                state.logits.zero_()
                kernels.run()
                new = cache.keys[:, row, :, at].float(), cache.values[:, row, :, at].float()
                seen.add(
                    torch.cat([state.logits[row].flatten(), *(one.flatten() for one in new)]).cpu().numpy().tobytes()
                )
            kernels.close()
        assert len(seen) == 1, at


@pytest.mark.parametrize("weights", ["", "int8", "q8_0", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_step_of_fewer_rows_has_the_same_bits(wide, state_of, family, weights):
    talker = wide(family, torch.bfloat16, 3, 704, weights)
    batch = BatchKernel.most_rows(talker)
    state = state_of(talker, batch, 704)
    kernels = [whole := BatchKernel(talker, state)]
    kernels += [BatchKernel(talker, state, rows, whole.scratch) for rows in whole.fewer]
    assert len(kernels) > 1 or not torch.cuda.get_device_capability() >= (8, 0) or not weights
    for kernel, rows in zip(kernels[1:], whole.fewer, strict=True):
        bits = []
        for one in (whole, kernel):
            pose(state, [(37 * row) % 700 for row in range(batch)], rows)
            if one is kernel:
                state.delay.done[rows:] = True
            one.run()
            bits.append([part.clone() for part in (state.logits[:rows], state.cache.keys[:, :rows])])
        assert all(torch.equal(one, other) for one, other in zip(*bits, strict=True)), rows
    for kernel in kernels:
        kernel.close()


@pytest.mark.parametrize("weights", ["", "int8", "q8_0", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_capture_allocates_nothing_and_gives_the_same_bits(wide, state_of, prompt, family, weights):
    talker = wide(family, torch.bfloat16, 3, 512, weights)
    eager, captured = (state_of(talker, 12, 512) for _ in range(2))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    kernels = [BatchKernel(talker, state) for state in (eager, captured)]
    backends = [ModelRunner(talker, state, kernel) for state, kernel in zip((eager, captured), kernels, strict=True)]
    for backend in backends:
        begin(backend, prompt)
    run_eager, run_captured = (kernel.run for kernel in kernels)
    with torch.cuda.stream(stream):
        run_captured()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    run_eager()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        inside = torch.cuda.memory_stats()["allocation.all.allocated"]
        run_captured()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == inside
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before <= 2  # a graph's own two random-state scalars
    for step in range(40):
        positions = [(step + 40 * b) % 512 for b in range(12)]
        pose(eager, positions, step)
        pose(captured, positions, step)
        run_eager()
        graph.replay()
        assert torch.equal(eager.logits, captured.logits)
        assert torch.equal(eager.cache.keys, captured.cache.keys)
        assert torch.equal(eager.cache.values, captured.cache.values)
    graph.reset()
    for backend in backends:
        backend.close()


def test_unsupported_shapes_and_dtypes_are_refused(wide, state_of):
    talker = wide("v3", torch.float32, 1, 64)
    with pytest.raises(KernelUnavailable, match="bf16 only"):
        BatchKernel(talker, state_of(talker, 2, 64))
    talker = wide("v3", torch.bfloat16, 1, 64)
    for rows in (1, BatchKernel.most_rows(talker) + 1):
        with pytest.raises(KernelUnavailable, match=r"2 to (64|128) rows"):
            BatchKernel(talker, state_of(talker, rows, 64))
