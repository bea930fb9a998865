"""Noise against its published values, sampling against a plain reference."""

import dataclasses

import numpy as np
import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.decode import philox

# Philox 4x32-10 known answers from Random123's kat_vectors: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, answer", KNOWN)
def test_philox_gives_the_published_answers(counter, key, answer):
    words = torch.tensor(counter).view(1, 1, 4, 1).clone()
    keys = philox.round_keys(key[0] | key[1] << 32).unsqueeze(0)
    scratch = torch.zeros(1, 1, 2, 1, dtype=torch.int64)
    philox.philox(words, keys, philox.multipliers(), scratch, scratch.clone())
    assert tuple(words.flatten().tolist()) == answer
    counters = np.array(counter, np.uint64)[:, None]
    assert tuple(philox.philox_on_host(counters, keys.numpy().transpose(1, 2, 0))[:, 0].tolist()) == answer


def test_gumbel_is_finite_at_both_ends():
    out, words = torch.empty(2), [0, 0xFFFFFFFF]
    philox.gumbel(torch.tensor(words), out)
    assert out.isfinite().all() and out[0] < -2 and out[1] > 15
    assert np.allclose(philox.gumbel_on_host(np.array(words, np.uint64)), out.numpy(), rtol=1e-6)


def kept_by_reference(logits, params):
    """Return the codes that a plain temperature -> top-k -> top-p chain keeps, one codebook at a time."""
    scaled = logits / params.temperature
    ordered, index = scaled.sort(descending=True)
    kth = ordered[min(params.top_k or len(scaled), len(scaled)) - 1]
    ordered = ordered.masked_fill(ordered < kth, -torch.inf)
    mass = ordered.softmax(0)
    keep = (mass.cumsum(0) - mass) < params.top_p if params.top_p < 1 else torch.ones_like(mass, dtype=torch.bool)
    keep &= ordered > -torch.inf
    return set(index[keep].tolist())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=50, top_p=0.95),
        SamplingParams(top_k=5, top_p=1.0, temperature=0.7),
        SamplingParams(top_k=0, top_p=0.5, temperature=1.3),
        SamplingParams(top_k=1),
        SamplingParams(top_k=0, top_p=1.0),
    ],
)
def test_truncation_keeps_the_codes_that_plain_python_keeps(bench, params):
    room = bench("v3")
    room.start(params)
    state = room.state
    state.sampler.suppress_specials.fill_(False)
    state.logits.normal_(generator=torch.Generator().manual_seed(3)).mul_(3)
    logits = state.logits.clone()
    state.sampler.sample(state.logits, state.delay)
    for book in range(8):
        kept = (state.sampler.adjusted[0, book] > -torch.inf).nonzero()[:, 0].tolist()
        assert set(kept) == kept_by_reference(logits[0, book], params)


@pytest.mark.parametrize("others", [{}, {"temperature": 0.0}, {"top_k": 0, "top_p": 1.0}, {"top_k": 3, "seed": 2**40}])
def test_the_host_chooses_what_the_device_does(bench, small, others):
    """With rows of two settings, at several steps, and with a row that is done and holds no numbers."""
    room, codes = bench("v3", batch=3), []
    state = room.state
    sequence = dataclasses.replace(small.prompt(room.config), params=SamplingParams(seed=3), index=4)
    room.prefill([(0, sequence), (1, dataclasses.replace(sequence, params=SamplingParams(**others)))])
    state.logits.normal_(generator=torch.Generator().manual_seed(3)).mul_(3)[2] = torch.nan
    for step in range(0, 40, 3):
        for state.sampler.on_host in (False, True):
            state.delay.num_generated.fill_(step)
            state.sampler.sample(state.logits, state.delay)
            codes.append(state.delay.output[:2].clone())
    assert all(torch.equal(device, host) for device, host in zip(codes[::2], codes[1::2], strict=True))
    assert state.sampler.finite.all() and len({tuple(one.flatten().tolist()) for one in codes}) > 3
    state.logits[1, 2, 3] = torch.inf
    state.sampler.sample(state.logits, state.delay)
    assert state.sampler.finite.tolist() == [True, False, True]


def test_samples_follow_the_softmax(bench):
    """4,000 samples of four codes: chi-square against the exact distribution stays under the 0.1 % point."""
    room = bench("v3")
    room.start(SamplingParams(top_k=0, top_p=1.0, temperature=2.0))
    state = room.state
    state.sampler.suppress_specials.fill_(False)
    state.logits.fill_(-1e9)
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0])
    state.logits[..., :4] = logits
    counts = torch.zeros(4)
    for frame in range(500):
        state.delay.num_generated.fill_(frame)
        state.sampler.sample(state.logits, state.delay)
        counts += torch.bincount(state.delay.output.flatten(), minlength=4)[:4]
    expected = (logits / 2.0).softmax(0) * 4000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3


def test_noise_depends_on_seed_line_frame_and_codebook(bench):
    def drawn(seed=0, line=0, frame=0):
        room = bench("v3")
        room.start(SamplingParams(seed=seed, top_k=0, top_p=1.0), lines=[line])
        room.state.logits.zero_()
        room.state.delay.num_generated.fill_(frame)
        room.state.sampler.sample(room.state.logits, room.state.delay)
        return room.state.delay.output[0].tolist()

    base = drawn()
    assert base == drawn()
    assert len({tuple(x) for x in (base, drawn(seed=1), drawn(line=1), drawn(frame=1), drawn(seed=2**40))}) == 5
    assert len(set(base)) > 4


def test_a_tiny_temperature_is_greedy(bench):
    drawn = []
    for temperature in (0.0, 1e-40, 1e-7):
        room = bench("v3")
        room.start(SamplingParams(temperature=temperature))
        room.state.logits.normal_(generator=torch.Generator().manual_seed(3))
        room.state.sampler.sample(room.state.logits, room.state.delay)
        drawn.append(room.state.delay.output[0].tolist())
    assert drawn[0] == drawn[1] == drawn[2]


def test_specials_inside_speech_are_suppressed_unless_allowed(bench):
    for ban in (True, False):
        room = bench("v3")
        room.start(SamplingParams(ban_specials=ban, temperature=0))
        room.state.logits[..., 1024:] = 100.0
        room.step()
        assert (room.state.delay.outputs[0, 0, 0] >= 1024) == (not ban)


@pytest.mark.parametrize("field, value", [("temperature", -1), ("top_p", 0), ("top_k", 2000), ("seed", -1)])
def test_a_setting_out_of_range_is_named(field, value):
    with pytest.raises(HiggsError, match=f"{field} is {value}"):
        SamplingParams(**{field: value})
