"""Consumer GPUs simulated: launchers told of few multiprocessors and little shared memory."""

import dataclasses

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.cuda.kernel import Limits
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable
from higgs_tts.engine.decode.kernels.batch import BatchKernel
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.prompts import Prefill

PARAMS = SamplingParams(temperature=0, max_frames=4000)
POSITIONS = (0, 1, 31, 32, 127, 128, 200, 511, 512, 1023, 1024, 1098, 1099)  # about chunks, splits, the last slot


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.fixture(params=[24, 46], ids="{} SMs".format)
def multiprocessors(request):
    return request.param


@pytest.fixture
def card(multiprocessors, monkeypatch):
    """card(kb): make launchers see few multiprocessors, with so much shared memory."""
    real = Limits.of(torch.device("cuda", 0)) if torch.cuda.is_available() else None

    def tell(kb):
        limits = dataclasses.replace(real, multiprocessors=multiprocessors, shared=kb << 10)
        monkeypatch.setattr(Limits, "of", staticmethod(lambda device: limits))

    return tell


def two(talker, state_of, batch, kernel, context=1100):
    """Return two backends on one talker with equal caches: torch's ops, and the kernel."""
    twin, ours = (state_of(talker, batch, context) for _ in range(2))
    backends = ModelRunner(talker, twin), ModelRunner(talker, ours, kernel(talker, ours))
    g = torch.Generator("cuda").manual_seed(1)
    for name in ("keys", "values"):
        getattr(twin.cache, name).normal_(generator=g)
        getattr(ours.cache, name).copy_(getattr(twin.cache, name))
    return backends


def compare(backends, place):
    """Compare one step of both, with every row where `place(state)` puts it."""
    start = backends[0].state.logits.clone()
    for backend in backends:
        state = backend.state
        place(state.cache.prompt_length)
        state.delay.num_generated.zero_()
        state.delay.max_generated.fill_(10)
        state.delay.done.fill_(False)
        state.logits.copy_(start)
        backend.step()
    twin, ours = (backend.state for backend in backends)
    assert torch.equal(ours.cache.position, twin.cache.position)
    for row in range(twin.batch):
        assert relative(ours.logits[row], twin.logits[row]) < 3e-2, (row, int(twin.cache.position[row]))
    assert not int(ours.work.stalled)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("kb", [64, 99])
@pytest.mark.parametrize("weights", ["", "int8", "q8_0", "int4"])
def test_the_single_kernel_equals_its_twin(wide, state_of, card, family, kb, weights):
    card(kb)
    backends = two(wide(family, torch.bfloat16, 2, 1100, weights), state_of, 1, SingleKernel)
    for at in POSITIONS:
        compare(backends, lambda lengths, at=at: lengths.fill_(at))
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize(("kb", "weights"), [(48, ""), (48, "int8"), (99, "int8"), (99, "q8_0"), (99, "int4")])
def test_the_batch_kernels_equal_their_twin(wide, state_of, card, family, kb, weights):
    card(kb)
    backends = two(wide(family, torch.bfloat16, 2, 1100, weights), state_of, len(POSITIONS), BatchKernel)
    lengths = torch.tensor(POSITIONS, device="cuda")
    for turn in range(3):
        compare(backends, lambda to, turn=turn: to.copy_(lengths.roll(turn)))
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("kb", [64, 99])
def test_captured_and_eager_steps_decode_alike(wide, state_of, prompt, card, family, kb):
    """Whole steps, including sampling, over 100 frames."""
    card(kb)
    talker, said = wide(family, torch.bfloat16, 2, 512), []
    for captured in (False, True):
        state = state_of(talker, 1, 512)
        runner = ModelRunner(talker, state)
        runner.choose_kernels("auto")
        assert runner.describe() == f"{SingleKernel.name}, eager"
        if captured:
            runner.capture(torch.cuda.Stream())
        Prefill(talker).begin(state, [(0, dataclasses.replace(prompt(talker.config), params=PARAMS))]).complete()
        for _ in range(100):
            runner.step()
        said.append((state.delay.outputs.clone(), state.logits.clone(), int(state.work.stalled)))
        runner.close()
    assert torch.equal(said[0][0], said[1][0]) and torch.equal(said[0][1], said[1][1])
    assert said[0][2] == said[1][2] == 0


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_torch_s_ops_decode_if_shared_memory_is_too_small(wide, state_of, card, family):
    card(48)
    talker = wide(family, torch.bfloat16, 1, 64)
    with pytest.raises(KernelUnavailable, match="shared memory"):
        SingleKernel(talker, state_of(talker, 1, 64))
    state = state_of(talker, 1, 64)
    runner = ModelRunner(talker, state)
    runner.choose_kernels("auto")
    assert runner.describe().startswith("torch ops (") and "shared memory" in runner.describe()
    runner.step()
    assert state.logits.isfinite().all()
    runner.close()
