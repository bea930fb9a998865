"""Noise against its published values, sampling against a plain reference."""

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
    philox.philox(words, keys, scratch)
    assert tuple(words.flatten().tolist()) == answer


def test_gumbel_is_finite_at_both_ends():
    out = torch.empty(2)
    philox.gumbel(torch.tensor([0, 0xFFFFFFFF]), out)
    assert out.isfinite().all() and out[0] < -2 and out[1] > 15


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
