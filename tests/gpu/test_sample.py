"""The sampling kernel against its torch twin: every buffer that is read later, bit for bit."""

import dataclasses
import random

import pytest
import torch
from higgs_tts.engine.core.codes import BOC, CODE_VOCAB, EOC
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.cuda.nvrtc import KernelUnavailable
from higgs_tts.engine.decode.kernels.sample import SampleKernel
from higgs_tts.engine.decode.kernels.single import SingleKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.device.memory import PrivatePool

CONTEXT = 160
TRUNCATIONS = [(50, 0.95), (0, 1.0), (0, 0.95), (1, 0.5), (CODE_VOCAB, 0.01), (200, 0.8), (1025, 0.999), (128, 1.0)]


def written(state) -> dict:
    """Return the buffers that a step writes before the talker decodes, by name."""
    buffers = {"logits": state.logits, "x": state.work.x, "position": state.cache.position}
    for name in ("output", "outputs", "num_generated", "countdown", "done", "ended"):
        buffers[name] = getattr(state.delay, name)
    buffers["finite"] = state.sampler.finite
    if state.family.resamples_repeats:
        buffers["history"] = state.sampler.history
    return buffers


class Quiet:
    """A talker that embeds and predicts nothing: the test plants the logits."""

    def __init__(self, talker):
        self.embed = talker.embed

    def decode(self, state):
        """Keep the logits."""


class Room:
    """A state for the twin and one for the kernel, with rows that start, end and restart."""

    def __init__(self, wide, state_of, family, batch, dtype=torch.bfloat16, seed=0):
        talker = wide(family, dtype, 1, CONTEXT)
        quiet = Quiet(talker)
        self.states = [state_of(talker, batch, CONTEXT) for _ in range(2)]
        self.twin, self.ours = self.states
        kernel = SampleKernel(talker, self.ours)
        self.runners = ModelRunner(quiet, self.twin), ModelRunner(quiet, self.ours, sample_kernel=kernel)
        self.random = random.Random(seed)
        self.g = torch.Generator(talker.device).manual_seed(seed)
        self.taste = self.normal() * 3  # a row's favourite codes, so that v2 has repeats to resample

    def normal(self):
        return torch.randn(self.twin.logits.shape, generator=self.g, device=self.g.device)

    def chance(self, share, *shape):
        return torch.rand(shape, generator=self.g, device=self.g.device) < share

    def start(self, row, **changes):
        """Begin a sequence in a row with its own settings, somewhere in the cache."""
        roll = self.random
        top_k, top_p = roll.choice(TRUNCATIONS)
        params = SamplingParams(
            seed=roll.getrandbits(64),
            temperature=roll.choice((0, 0.6, 1.0, 1.0, 2.0)),
            top_k=top_k,
            top_p=top_p,
            max_frames=roll.choice((1, 7, 60, 5000)),
            ban_specials=roll.random() < 0.7,
            ras_window=roll.choice((0, 3, 7)),
            ras_repeats=roll.choice((1, 2)),
        )
        params = dataclasses.replace(params, **changes)
        tail = torch.randint(0, 1026, (roll.randrange(10), 8))
        prompt_length, index = roll.choice((1, 40, CONTEXT - 20, CONTEXT)), roll.randrange(1000)
        for runner in self.runners:
            runner.start_row(row, Sequence([0] * prompt_length, ((0, tail),), params=params, index=index))

    def plant(self, ends=0.02):
        """Plant logits as from a bf16 head, with ties, and now and then a dominant end or begin code."""
        logits = (self.taste + self.normal()).bfloat16().float()
        batch, books, _ = logits.shape
        logits[:, 0, EOC] += self.chance(ends, batch) * 100
        logits[:, :, EOC] += self.chance(ends / 8, batch, books) * 100
        logits[:, :, BOC] += self.chance(ends / 8, batch, books) * 100
        for state in self.states:
            state.logits.copy_(logits)

    def spoil(self, share=0.1):
        """Make one logit NaN in some rows, possibly a suppressed code's."""
        batch, books, vocab = self.twin.logits.shape
        for b in self.chance(share, batch).nonzero()[:, 0].tolist():
            book, code = self.random.randrange(books), self.random.choice((BOC, EOC, self.random.randrange(vocab)))
            value = self.random.choice((float("nan"), float("inf"), float("-inf")))
            for state in self.states:
                state.logits[b, book, code] = value

    def step(self):
        """Step one frame with both, and return the names of buffers that differ."""
        for runner in self.runners:
            runner.step()
        theirs, ours = map(written, self.states)
        return [name for name in theirs if not torch.equal(theirs[name], ours[name])]

    def close(self):
        for runner in self.runners:
            runner.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_every_buffer_equals_the_twin_s_over_400_frames(wide, state_of, family, batch):
    """All settings at once. Rows end by themselves, by limit or at the cache's end, are dead, and restart later."""
    room = Room(wide, state_of, family, batch, seed=batch)
    ended = 0
    for frame in range(400):
        if frame % 8 == 0:
            ended += int(room.twin.delay.ended.sum())
            for b in room.twin.delay.done.nonzero()[:, 0].tolist():
                room.start(b)
        room.plant()
        assert room.step() == [], frame
    assert ended > 0
    room.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("top_k, top_p", TRUNCATIONS)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_each_truncation_alone_equals_the_twin_s(wide, state_of, family, top_k, top_p, temperature):
    room = Room(wide, state_of, family, 3, torch.float32)
    for frame in range(60):
        for b in room.twin.delay.done.nonzero()[:, 0].tolist():
            room.start(b, top_k=top_k, top_p=top_p, temperature=temperature, max_frames=100)
        room.plant(ends=0)
        assert room.step() == [], frame
    room.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_equal_or_infinitely_low_logits_are_sampled_as_the_twin_does(wide, state_of, family, temperature):
    room = Room(wide, state_of, family, 4)
    for fill in (0.0, -0.0, 1e30, -1e30):
        for top_k, top_p in TRUNCATIONS:
            for b in range(4):
                room.start(b, top_k=top_k, top_p=top_p, temperature=temperature)
            for state in room.states:
                state.logits.fill_(fill)
                state.logits[1, :, 100:] = float("-inf")
                state.logits[2, :, ::2] = -fill
                state.logits[3, :, :3] = 5
            if top_p in (1.0, 0.5, 0.01):  # elsewhere the sum of equal masses crosses p where rounding says
                assert room.step() == [], (fill, top_k, top_p)
    room.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_nan_logits_leave_every_index_in_bounds(wide, state_of, family):
    room = Room(wide, state_of, family, 4)
    for b in range(4):
        room.start(b, max_frames=5000)
    for fill in (float("nan"), float("inf"), float("-inf")):
        room.ours.logits.fill_(fill)
        room.ours.logits[1, :, 7] = 0
        room.runners[1].step()
        assert ((room.ours.delay.output >= 0) & (room.ours.delay.output < CODE_VOCAB)).all()
    room.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_rows_with_nan_logits_are_flagged_as_by_the_twin(wide, state_of, family):
    flags_are_the_twin_s(Room(wide, state_of, family, 16), 200)


def flags_are_the_twin_s(room, frames):
    """Live and dead rows. The flag stays set until the row restarts. The output of flagged rows may differ."""
    seen = set()
    for frame in range(frames):
        if frame % 8 == 0:
            done, not_finite = room.twin.delay.done, ~room.twin.sampler.finite
            for b in done.nonzero()[:, 0].tolist() + not_finite.nonzero()[:, 0].tolist():
                room.start(b)
            assert room.twin.sampler.finite.all() and room.ours.sampler.finite.all()
        for state in room.states:  # a row that says something else may end at another time
            state.delay.done.copy_(room.twin.delay.done)
        room.plant()
        room.spoil()
        room.step()
        assert torch.equal(room.ours.sampler.finite, room.twin.sampler.finite), frame
        seen |= set(zip(room.twin.delay.done.tolist(), room.twin.sampler.finite.tolist(), strict=True))
    assert len(seen) == 4, seen
    room.close()


def test_repeats_are_resampled_by_both(wide, state_of):
    """Shows v2's rule at work: other codes come out without it."""
    room = Room(wide, state_of, "v2", 2)
    for b in range(2):
        room.start(b, temperature=1.0, top_k=2, ras_window=7 if b else 0, ras_repeats=1, max_frames=5000)
    for state in room.states:
        state.cache.prompt_length.fill_(1)
        state.delay.max_generated.fill_(CONTEXT - 1)
        state.delay.done.fill_(False)
    for _ in range(100):
        room.plant(ends=0)
        assert room.step() == []
    kinds = [len(set(room.ours.delay.outputs[b, 20:100, 0].tolist())) for b in range(2)]
    assert kinds[1] > 1.5 * kinds[0], kinds
    room.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_step_of_two_kernels_is_captured_and_replayed(wide, state_of, prompt, family):
    talker, pool = wide(family, torch.bfloat16, 2, 256), PrivatePool(torch.device("cuda", 0))
    eager, replayed = states = [state_of(talker, 1, 256) for _ in range(2)]
    runners = [ModelRunner(talker, state, SingleKernel(talker, state), SampleKernel(talker, state)) for state in states]
    runners[1].capture(pool.capture_stream())
    for runner in runners:
        runner.prefill([(0, dataclasses.replace(prompt(talker.config), params=SamplingParams(max_frames=5000)))])
    for step in range(256):
        for runner in runners:
            runner.step()
        assert torch.equal(eager.logits, replayed.logits), step
        assert torch.equal(eager.delay.output, replayed.delay.output), step
    assert torch.equal(eager.delay.outputs, replayed.delay.outputs) and bool(replayed.delay.done[0])
    for runner in runners:
        runner.close()
    pool.close()


def test_unsupported_shapes_and_dtypes_are_refused(wide, state_of):
    talker = wide("v3", torch.bfloat16, 1, CONTEXT)
    talker.dtype = torch.float16
    with pytest.raises(KernelUnavailable, match="bf16 or fp32"):
        SampleKernel(talker, state_of(talker, 1, CONTEXT))
