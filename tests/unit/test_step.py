"""The end machines in tensors against plain Python, one row at a time, as in SGLang and Boson."""

import pytest
import torch
from higgs_tts.engine.core.codes import BOC, EOC, frames_ready
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.decode.model_runner import ModelRunner

N = 8


def plain_v3(drawn, limit):
    """Run SGLang's v3 machine over drawn rows. Returns the emitted rows, and True if speech ended by itself."""
    out, started, countdown = [], 0, -1
    for row in drawn[:limit]:
        row, done = list(row), False
        if started < N:
            row[started + 1 :] = [BOC] * (N - started - 1)
            started += 1
        elif countdown >= 0:
            countdown -= 1
            done = countdown <= 0
        elif row[0] == EOC:
            countdown = N - 2
        out.append(row)
        if done:
            return out, True
    return out, False


def plain_v2(drawn, limit):
    """Run Boson's v2 machine, without the seed row."""
    out, begun, rest = [], 0, None
    for row in drawn[:limit]:
        row = list(row)
        if begun + 1 < N:
            row[begun + 1 :] = [BOC] * (N - begun - 1)
            begun += 1
        if rest is not None:
            row[: N - rest] = [EOC] * (N - rest)
            rest -= 1
        elif EOC in row:
            first = row.index(EOC)
            row[:first] = [EOC] * first
            rest = N - first - 1
        out.append(row)
        if rest is not None and rest <= 0:
            return out, True
    return out, False


def ready(state, ended):
    """Return row 0's frames once it is finished."""
    closing = state.family.closing_columns
    return frames_ready(int(state.delay.num_generated[0]), state.config.codebooks, closing, ended, True)


PLAIN = {"v3": plain_v3, "v2": plain_v2}


class Script:
    """A talker whose next logits pick given codes."""

    def __init__(self, drawn):
        self.drawn, self.steps = drawn, 0

    def embed(self, output, work):
        """Ignore the codes."""

    def decode(self, state):
        state.logits.zero_()
        self.steps += 1
        step = min(self.steps, self.drawn.shape[1] - 1)
        state.logits.scatter_(2, self.drawn[:, step].unsqueeze(2), 50.0)


def run_script(room, drawn, limits, ban=False):
    params = SamplingParams(temperature=0, ban_specials=ban)
    room.start(params)
    state, script = room.state, Script(drawn)
    runner = ModelRunner(script, state)
    state.delay.max_generated.copy_(torch.tensor(limits))
    script.steps = -1
    script.decode(state)
    for _ in range(drawn.shape[1]):
        runner.step()
    return state


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("seed", range(12))
def test_the_delay_machine_equals_plain_python_row_by_row(bench, family, seed):
    g = torch.Generator().manual_seed(seed)
    batch, steps = 5, 60
    drawn = torch.randint(0, 1024, (batch, steps, N), generator=g)
    rare = torch.rand(drawn.shape, generator=g)
    drawn[rare < 0.004 * (seed % 4)] = EOC
    drawn[(rare > 0.99) & (seed % 2 == 0)] = BOC
    for b in range(batch):  # most rows end on codebook 0 somewhere, at different times
        drawn[b, (7 * b + seed) % steps, 0] = EOC
    limits = [60, 40, 60, 9, 60]
    state = run_script(bench(family, batch=batch), drawn, limits)
    for b in range(batch):
        rows, ended = PLAIN[family](drawn[b].tolist(), limits[b])
        assert state.delay.outputs[b, : int(state.delay.num_generated[b])].tolist() == rows
        assert bool(state.delay.ended[b]) == ended
        assert bool(state.delay.done[b]) == (ended or len(rows) == limits[b])


@pytest.mark.parametrize("family, extra", [("v3", N - 1), ("v2", N)])
def test_a_clean_end_gives_exactly_the_frames_before_it(bench, family, extra):
    frames = 20
    drawn = torch.randint(0, 1024, (1, 60, N))
    drawn[0, frames, 0] = EOC
    state = run_script(bench(family), drawn, [60], ban=True)
    assert int(state.delay.num_generated[0]) == frames + extra
    assert ready(state, ended=True) == frames


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_limit_gives_exactly_that_many_frames(bench, family):
    room = bench(family)
    room.start(SamplingParams(max_frames=13))
    for _ in range(30):
        room.step()
    state = room.state
    assert bool(state.delay.done[0]) and not bool(state.delay.ended[0])
    assert ready(state, ended=False) == 13


def test_v3_ignores_an_end_before_row_n(bench):
    drawn = torch.randint(0, 1024, (1, 40, N))
    drawn[0, 3, 0] = EOC
    state = run_script(bench("v3"), drawn, [40])
    assert not bool(state.delay.ended[0]) and int(state.delay.num_generated[0]) == 40


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_cache_is_used_exactly_to_its_last_slot(bench, family):
    room = bench(family, context=64)
    room.start(SamplingParams(max_frames=4000))
    length = int(room.state.cache.prompt_length[0])
    room.run(64)
    assert int(room.state.delay.num_generated[0]) == 64 - length
    assert int(room.state.cache.position.max()) == 63 and bool(room.state.delay.done[0])


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_idle_rows_leave_live_rows_alone(bench, family):
    """A batch of four with one live row gives its speech as alone, and idle rows count nothing."""
    params = SamplingParams(seed=5)
    alone = bench(family)
    alone.start(params)
    expected = alone.run(60)[0]
    room = bench(family, batch=4)
    room.start(params)
    room.state.delay.done[[0, 1, 3]] = True
    rows = room.run(60)
    assert torch.equal(rows[2], expected)
    assert room.state.delay.num_generated.tolist() == [0, 0, 60, 0]
