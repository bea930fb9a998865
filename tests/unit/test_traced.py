"""The step under the tape's rules, and traced against eager."""

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.decode.state import DecodeState
from higgs_tts.engine.device.graph import same_bits
from higgs_tts.tests.traced import StepError, Tape, tensors_of


def tape_over(room):
    room.on_host = False
    return Tape(tensors_of(room))


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_step_allocates_nothing_and_never_synchronises(bench, family, dtype):
    room = bench(family, batch=3, dtype=dtype)
    room.start(SamplingParams())
    with tape_over(room) as tape:
        room.step()
    assert len(tape.calls) > 100


FOREIGN = torch.ones(3, dtype=torch.int64)
PLANTS = {
    "a temporary": lambda state: state.logits + 1.0,
    "a boolean mask": lambda state: state.logits[state.logits > 0],
    "item": lambda state: state.delay.num_generated[0].item(),
    "a branch on data": lambda state: bool(state.delay.done.all()),
    "a host constant": lambda state: state.delay.num_generated.copy_(torch.tensor([1, 2, 3])),
    "a host scalar": lambda state: state.delay.num_generated.add_(torch.tensor(1)),
    "a foreign tensor": lambda state: state.delay.num_generated.add_(FOREIGN),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_the_tape_refuses_what_a_graph_cannot_hold(bench, plant, monkeypatch):
    room = bench("v3", batch=3)
    room.start(SamplingParams())

    sample = DecodeState.sample

    def planted(state, **named):
        plant(state)
        sample(state, **named)

    monkeypatch.setattr(DecodeState, "sample", planted)
    with pytest.raises(StepError), tape_over(room):
        room.step()


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [1, 4])
def test_traced_equals_eager_over_two_requests(bench, small, family, batch):
    eager, traced = bench(family, batch=batch), bench(family, batch=batch, is_traced=True)
    eager.on_host = False  # a captured step attends to the whole cache and masks what is empty
    for seed in (11, 12):
        prompts = [small.prompt(eager.config, seed=10 * seed + b, frames=4 + b) for b in range(batch)]
        said = []
        for room in (eager, traced):
            room.start(SamplingParams(seed=seed), prompts, lines=list(range(batch)))
            rows = room.run(120)
            said.append((rows, room.state.logits.clone()))
        assert torch.equal(said[0][0], said[1][0])
        assert torch.equal(said[0][1], said[1][1])
        assert len(said[0][0][0, :, 0].unique()) > 50


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_cpu_step_reads_only_filled_slots(bench, small, family, batch):
    short, whole = bench(family, batch=batch), bench(family, batch=batch)
    whole.on_host = False
    prompts = [small.prompt(short.config, seed=b, frames=3 + 4 * b) for b in range(batch)]
    said = []
    for room in (short, whole):
        room.start(SamplingParams(seed=7), prompts, lines=list(range(batch)))
        if room is short:
            for row, prompt in enumerate(prompts):
                for cached in (room.state.cache.keys, room.state.cache.values):
                    cached[:, row, :, len(prompt) :] = float("nan")  # read, it would be everywhere
        said.append((room.run(100), room.state.logits.clone()))
    assert torch.equal(said[0][0], said[1][0])
    torch.testing.assert_close(said[0][1], said[1][1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_same_seed_gives_the_same_codes_in_any_row_and_batch(bench, small, family):
    config = small.config(family)
    mine = small.prompt(config, seed=1)
    params = SamplingParams(seed=9)
    alone = bench(family)
    alone.start(params, [mine], lines=[3])
    expected = alone.run(150)[0]
    for place in range(4):
        room = bench(family, batch=4)
        prompts = [small.prompt(config, seed=20 + b, frames=3 + b) for b in range(4)]
        lines = [b + 10 for b in range(4)]
        prompts[place], lines[place] = mine, 3
        room.start(params, prompts, lines)
        assert torch.equal(room.run(150)[place], expected)


def test_a_capture_is_checked_against_the_step_to_the_bit():
    """NaN, from a damaged checkpoint, is not a difference."""
    logits = torch.tensor([[1.0, float("nan")], [float("inf"), -2.0]])
    assert same_bits(logits, logits.clone()) and not same_bits(logits, logits.nan_to_num())
    cache = logits.bfloat16()
    assert same_bits(cache, cache.clone()) and not same_bits(cache, cache.flip(0))
