"""The one-launch kernel against its torch twin, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.cuda import kernel
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable, read_source
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.model_runner import ModelRunner

PARAMS = SamplingParams(temperature=0, max_frames=4000)
PUBLICATIONS = {  # of a kind of value, as the source has it
    "qkv": "publish(s.qkv + ranges[0].first + j,",
    "partial": "publish(partial + d,",
    "attended": "publish(to,",
    "act": "publish(s.act + ranges[2].first + j,",
    "x": "publish(s.x + base + r,",
    "arrivals": 'if (threadIdx.x == 0) asm volatile("red',
}


def withheld(source: str, missing: str, when: str) -> str:
    """Return the kernel's source without one publication in some blocks, if the condition `when` holds."""
    publication = PUBLICATIONS[missing]
    assert source.count(publication) == 1, publication
    return source.replace(publication, f"if (!(blockIdx.x % 8 == 1 && {when})) {publication}")


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def both(wide, state_of, family, layers, context, prompt, frames=12, weights=""):
    """Return two backends over one talker and prompt, each with its own state, the second with the kernel."""
    talker = wide(family, torch.bfloat16, layers, context, weights)
    twin, ours = (state_of(talker, 1, context) for _ in range(2))
    backends = ModelRunner(talker, twin), ModelRunner(talker, ours, SingleKernel(talker, ours))
    for backend in backends:
        begin(backend, prompt, frames)
    return backends


def begin(backend, prompt, frames=12):
    sequence = dataclasses.replace(prompt(backend.talker.config, frames=frames), params=PARAMS)
    backend.prefill([(0, sequence)])


@pytest.mark.parametrize("weights", ["", "int8", "q8_0", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernel_and_twin_agree_within_bf16_over_100_steps(wide, state_of, prompt, family, weights):
    """Both get the twin's codes, so that a near tie cannot make them diverge."""
    backends = both(wide, state_of, family, 4, 512, prompt, weights=weights)
    twin, ours = (backend.state for backend in backends)
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        for backend in backends:
            backend.step()
        assert torch.equal(ours.delay.output, twin.delay.output)
        assert ours.logits.isfinite().all() and relative(ours.logits, twin.logits) < 2e-2
    filled = int(twin.cache.position[0]) + 1
    assert relative(ours.cache.keys[..., :filled, :], twin.cache.keys[..., :filled, :]) < 2e-2
    assert relative(ours.cache.values[..., :filled, :], twin.cache.values[..., :filled, :]) < 2e-2
    first = int(twin.cache.prompt_length[0])
    kept, expected = (state.cache.row_queries(0, first, filled) for state in (ours, twin))
    assert expected.any(-1).all() and relative(kept, expected) < 2e-2
    close(backends)


def close(backends):
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernel_is_as_close_to_fp32_as_the_twin_is(wide, state_of, prompt, family):
    """The fp32 talker holds the same weights, rounded to bf16."""
    of_twin, of_ours = both(wide, state_of, family, 4, 256, prompt)
    talker, twin, ours = of_twin.talker, of_twin.state, of_ours.state
    exact = wide(family, torch.float32, 4, 256)
    for one, other in zip(exact.tensors(), talker.tensors(), strict=True):
        one.copy_(other)
    exact.embed_text.copy_(talker.embed_text)
    state = state_of(exact, 1, 256)
    backends = of_twin, of_ours, ModelRunner(exact, state)
    begin(backends[2], prompt)
    errors = {"twin": 0.0, "kernel": 0.0}
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        state.logits.copy_(twin.logits)
        for backend in backends:
            backend.step()
        errors["twin"] = max(errors["twin"], relative(twin.logits, state.logits))
        errors["kernel"] = max(errors["kernel"], relative(ours.logits, state.logits))
    assert errors["kernel"] < 2e-2 and errors["kernel"] < 1.2 * errors["twin"], errors
    close(backends)


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernel_and_twin_agree_at_every_length(wide, state_of, prompt, family):
    """Lengths around the kernel's own bounds: one position, a split's edge, all splits, the last slot."""
    backends = both(wide, state_of, family, 2, 1100, prompt)
    twin, ours = (backend.state for backend in backends)
    g = torch.Generator("cuda").manual_seed(1)
    for name in ("keys", "values"):
        getattr(twin.cache, name).normal_(generator=g)
        getattr(ours.cache, name).copy_(getattr(twin.cache, name))
    for at in (0, 1, 30, 31, 32, 63, 64, 65, 127, 500, 511, 512, 513, 1023, 1098, 1099):
        start = twin.logits.clone()
        for backend in backends:
            state = backend.state
            state.cache.prompt_length.fill_(at)
            state.delay.num_generated.zero_()
            state.delay.max_generated.fill_(10)
            state.delay.done.fill_(False)
            state.logits.copy_(start)
            backend.step()
            assert int(state.cache.position[0]) == at
        assert relative(ours.logits, twin.logits) < 2e-2, at
    close(backends)


def test_the_same_input_gives_the_same_bits(wide, state_of, prompt):
    backends = both(wide, state_of, "v3", 3, 512, prompt, frames=200)
    ours, seen = backends[1].state, set()
    start = ours.logits.clone()
    for _ in range(20):
        ours.delay.num_generated.zero_()
        ours.logits.copy_(start)
        backends[1].step()
        seen.add(ours.logits.cpu().numpy().tobytes())
    assert len(seen) == 1
    close(backends)


def test_unsupported_shapes_and_dtypes_are_refused(wide, state_of):
    talker = wide("v3", torch.float32, 1, 64)
    with pytest.raises(KernelUnavailable, match="bf16 only"):
        SingleKernel(talker, state_of(talker, 1, 64))
    talker = wide("v3", torch.bfloat16, 1, 64)
    with pytest.raises(KernelUnavailable, match="one row"):
        SingleKernel(talker, state_of(talker, 2, 64))


@pytest.mark.parametrize("missing", PUBLICATIONS)
def test_a_launch_ends_if_a_value_never_arrives(wide, state_of, monkeypatch, missing):
    """The value is only missing from position 300 on, so that the kernel can be made and used before."""
    talker = wide("v3", torch.bfloat16, 3, 512)
    healthy, state = state_of(talker, 1, 512), state_of(talker, 1, 512)
    twin = SingleKernel(talker, healthy)
    monkeypatch.setattr(kernel, "read_source", lambda path: withheld(read_source(path), missing, "*s.position >= 300"))
    planted = SingleKernel(talker, state)

    def step(kernel, state, position):
        state.cache.position.fill_(position)
        state.work.x.fill_(0.25)
        kernel.run()
        torch.cuda.synchronize()

    for position in (100, 101):
        step(twin, healthy, position)
        step(planted, state, position)
        assert torch.equal(state.logits, healthy.logits)
    step(planted, state, 400)
    assert int(state.work.stalled) != 0
    state.logits.fill_(7.0)
    step(planted, state, 102)  # one that was queued behind it returns at once
    assert bool((state.logits == 7.0).all())
    planted.reset()
    step(twin, healthy, 102)
    step(planted, state, 102)
    assert torch.equal(state.logits, healthy.logits)
    close((twin, planted))
