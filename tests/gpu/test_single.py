"""The one-launch kernel against its torch twin, on layers of the published widths."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.config import SamplingParams
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.step import decode_step, prefill

PARAMS = SamplingParams(temperature=0, max_frames=4000)


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def both(wide, state_of, family, layers, context, prompt, frames=12):
    """The same talker and prompt in two states, the second with the kernel."""
    talker = wide(family, torch.bfloat16, layers, context)
    states = [state_of(talker, 1, context) for _ in range(2)]
    states[1].fused = SingleKernel(talker, states[1])
    for state in states:
        prefill(talker, state, 0, dataclasses.replace(prompt(talker.config, frames=frames), params=PARAMS))
    return talker, *states


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernel_and_twin_agree_within_bf16_over_100_steps(wide, state_of, prompt, family):
    """Both are fed the twin's codes, so that a near tie cannot lead them apart."""
    talker, twin, ours = both(wide, state_of, family, 4, 512, prompt)
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        decode_step(talker, twin)
        decode_step(talker, ours)
        assert torch.equal(ours.row, twin.row)
        assert ours.logits.isfinite().all() and relative(ours.logits, twin.logits) < 2e-2
    filled = int(twin.position[0]) + 1
    assert relative(ours.keys[..., :filled, :], twin.keys[..., :filled, :]) < 2e-2
    assert relative(ours.values[..., :filled, :], twin.values[..., :filled, :]) < 2e-2
    ours.fused.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernel_is_as_close_to_fp32_as_the_twin_is(wide, state_of, prompt, family):
    """The fp32 talker holds the same weights, rounded to bf16."""
    talker, twin, ours = both(wide, state_of, family, 4, 256, prompt)
    exact = wide(family, torch.float32, 4, 256)
    for one, other in zip(exact.tensors(), talker.tensors(), strict=True):
        one.copy_(other)
    exact.embed_text.copy_(talker.embed_text)
    state = state_of(exact, 1, 256)
    prefill(exact, state, 0, dataclasses.replace(prompt(exact.config), params=PARAMS))
    errors = {"twin": 0.0, "kernel": 0.0}
    for _ in range(100):
        ours.logits.copy_(twin.logits)
        state.logits.copy_(twin.logits)
        for one, model in ((twin, talker), (ours, talker), (state, exact)):
            decode_step(model, one)
        errors["twin"] = max(errors["twin"], relative(twin.logits, state.logits))
        errors["kernel"] = max(errors["kernel"], relative(ours.logits, state.logits))
    assert errors["kernel"] < 2e-2 and errors["kernel"] < 1.2 * errors["twin"], errors
    ours.fused.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_every_length_up_to_the_last_slot(wide, state_of, prompt, family):
    """Lengths around the kernel's own bounds: one position, a split's edge, all splits, the last slot."""
    talker, twin, ours = both(wide, state_of, family, 2, 1100, prompt)
    g = torch.Generator("cuda").manual_seed(1)
    for cache in ("keys", "values"):
        getattr(twin, cache).normal_(generator=g)
        getattr(ours, cache).copy_(getattr(twin, cache))
    for at in (0, 1, 30, 31, 32, 63, 64, 65, 127, 500, 511, 512, 513, 1023, 1098, 1099):
        start = twin.logits.clone()
        for state in (twin, ours):
            state.prompt_length.fill_(at)
            state.written.zero_()
            state.row_limit.fill_(10)
            state.done.fill_(False)
            state.logits.copy_(start)
            decode_step(talker, state)
            assert int(state.position[0]) == at
        assert relative(ours.logits, twin.logits) < 2e-2, at
    ours.fused.close()


def test_the_same_input_gives_the_same_bits(wide, state_of, prompt):
    talker, _, ours = both(wide, state_of, "v3", 3, 512, prompt, frames=200)
    seen = set()
    start = ours.logits.clone()
    for _ in range(20):
        ours.written.zero_()
        ours.logits.copy_(start)
        decode_step(talker, ours)
        seen.add(ours.logits.cpu().numpy().tobytes())
    assert len(seen) == 1
    ours.fused.close()


def test_what_the_kernel_cannot_serve_is_said(wide, state_of):
    talker = wide("v3", torch.float32, 1, 64)
    with pytest.raises(KernelUnavailable, match="bf16 only"):
        SingleKernel(talker, state_of(talker, 1, 64))
    talker = wide("v3", torch.bfloat16, 1, 64)
    with pytest.raises(KernelUnavailable, match="one row"):
        SingleKernel(talker, state_of(talker, 2, 64))
