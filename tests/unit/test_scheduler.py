"""A queue of lines through few rows: who says what, in which row, and when."""

from collections import defaultdict

import pytest
import torch
from higgs_tts.engine.codes import EOC
from higgs_tts.engine.config import SamplingParams
from higgs_tts.engine.decode.scheduler import CHECK_EVERY, Decoding

ENDS = [37, 5, 60, 12, 0, 28, 9]  # frames after which each line finds its end
ALL = range(len(ENDS))
SAMPLED, GREEDY = SamplingParams(seed=7, max_frames=200), SamplingParams(temperature=0, max_frames=200)


@pytest.fixture(params=["v3", "v2"])
def family(request):
    return request.param


@pytest.fixture
def queue(bench, small, family):
    """make(rows, lines, params, ...) -> a Decoding of those lines of one text, each with its own prompt and end."""

    def make(rows, params=SAMPLED, lines=ALL, ends=True, context=320, **options):
        room = bench(family, batch=rows, context=context)
        prompts = [small.prompt(room.config, seed=line, frames=3 + 2 * line) for line in lines]
        decode, after = room.talker.decode, torch.tensor(ENDS)

        def ending(state):
            decode(state)
            state.logits[:, 0, EOC].add_((state.written >= after[state.line] + 1) * 1e4)

        if ends:
            room.talker.decode = ending
        run = Decoding(room.talker, room.state, room.executor, prompts, params, min(lines), **options)
        run.state = room.state
        return run

    return make


def said(run):
    """Codes of every line; the last piece of each comes once it is done."""
    pieces, closed = defaultdict(list), set()
    for index, codes in run:
        assert index not in closed
        pieces[index].append(codes)
        if run.lines[index].done:
            closed.add(index)
    assert closed == set(range(len(run.lines)))
    return [torch.cat(pieces[index]) for index in range(len(run.lines))]


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_a_line_says_the_same_in_any_row_and_among_any_number_of_rows(queue, family, params):
    alone = [said(queue(1, params, lines=[line]))[0] for line in ALL]
    assert len({len(codes) for codes in alone}) > 4
    assert not torch.equal(alone[0][:20], alone[2][:20])
    for rows in (1, 3, 9):
        run = queue(rows, params)
        for codes, expected in zip(said(run), alone, strict=True):
            assert torch.equal(codes, expected)
        assert all(line.ended and line.taken == len(codes) for line, codes in zip(run.lines, alone, strict=True))


@pytest.mark.parametrize("late", [1, 2, 5])
def test_copies_that_are_read_late_belong_to_the_line_they_were_made_for(queue, late):
    expected = said(queue(3))
    run = queue(3)
    run._late = late
    for codes, other in zip(said(run), expected, strict=True):
        assert torch.equal(codes, other)


def test_rows_are_refilled_in_the_order_of_the_queue_and_no_line_waits_for_a_slow_one(queue):
    started = {row: [] for row in range(2)}

    def note():
        for row, line in enumerate(run._rows):
            if line is not None and line.number not in started[row]:
                started[row].append(line.number)

    run = queue(2, on_step=note)
    done = [index for index, _ in run if run.lines[index].done]
    assert started == {0: [0, 3, 4, 5], 1: [1, 2, 6]}
    assert done == [1, 0, 3, 4, 2, 6, 5]


def test_what_is_held_of_a_line_does_not_grow_with_it(queue):
    run = queue(2, lines=[0, 1], ends=False)
    books = run.state.config.codebooks
    for index, _ in run:
        assert len(run.lines[index].rest) <= books + 1
    assert [line.taken for line in run.lines] == [200, 200]


def test_limits_are_each_line_s_own(queue):
    """Frames by the setting or by the cache, and a prompt that fills the cache says nothing."""
    run = queue(2, SamplingParams(seed=1, max_frames=50), ends=False, context=84)
    lengths = [len(prompt.ids) for _, prompt in run._queue]
    frames = [len(codes) for codes in said(run)]
    assert frames == [min(50, 84 - length - run.state.config.codebooks + 1) for length in lengths]
    assert not any(line.ended for line in run.lines) and frames[0] == 50 > frames[-1]
    full = queue(1, lines=[0], ends=False, context=lengths[0])
    assert [len(codes) for codes in said(full)] == [0]


def test_raising_in_the_middle_leaves_the_state_usable(queue):
    expected = said(queue(2))
    calls = []

    def cancel():
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt

    run = queue(2, on_step=cancel)
    with pytest.raises(KeyboardInterrupt):
        said(run)
    queued = queue(2)
    again = Decoding(run._talker, run._state, run._executor, [prompt for _, prompt in queued._queue], SAMPLED)
    for codes, other in zip(said(again), expected, strict=True):
        assert torch.equal(codes, other)


def test_in_a_hurry_the_first_line_goes_alone_until_its_frames_are_there(queue, family):
    expected, live = said(queue(3)), []
    run = queue(3, hurry=11, on_step=lambda: live.append(int((~run.state.done).sum())))
    pieces = iter(run)
    index, codes = next(pieces)
    assert index == 0 and len(codes) == 11
    assert run._steps == 11 + run.state.config.codebooks - (family == "v3") and set(live) == {1}
    rest = [(index, codes), *pieces]
    assert max(live) == 3 and len(live) < sum(ENDS) + 15 * len(ENDS)
    for line, other in enumerate(expected):
        assert torch.equal(torch.cat([codes for index, codes in rest if index == line]), other)


def test_in_a_hurry_a_line_may_still_be_short(queue):
    expected = said(queue(2, lines=[1, 2, 3]))
    for codes, other in zip(said(queue(2, lines=[1, 2, 3], hurry=11)), expected, strict=True):
        assert torch.equal(codes, other)


def test_every_prompt_and_every_step_asks_whether_to_go_on(queue):
    calls = []
    run = queue(2, on_step=lambda: calls.append(1))
    said(run)
    assert len(calls) == run._steps + len(ENDS)
    assert CHECK_EVERY > 1
