"""Scheduling sequences into few rows: which sequence is in which row, and when."""

import contextlib
import dataclasses
import itertools
import random

import pytest
import torch
from higgs_tts.engine.core.config import SamplingParams
from higgs_tts.engine.decode import prompts
from higgs_tts.engine.decode import scheduler as scheduler_module
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.scheduler import CHECK_EVERY, Scheduler
from higgs_tts.tests.watched import ending

ENDS = [37, 5, 60, 12, 0, 28, 9]  # frames after which each sequence finds its end
ALL = range(len(ENDS))
SAMPLED, GREEDY = SamplingParams(seed=7, max_frames=200), SamplingParams(temperature=0, max_frames=200)


@pytest.fixture(params=["v3", "v2"])
def family(request):
    return request.param


@pytest.fixture
def scheduled(bench, small, family):
    """make(rows, params, indexes, ...) -> a Scheduler of these sequences, each with its own prompt and end."""

    with contextlib.ExitStack() as stack:

        def make(rows, params=SAMPLED, indexes=ALL, ends=True, context=320, alone=False, **options):
            room = bench(family, batch=rows, context=context)
            sequences = [
                dataclasses.replace(
                    small.prompt(room.config, seed=index, frames=3 + 2 * index), index=index, params=params
                )
                for index in indexes
            ]
            if ends:
                after = torch.tensor(ENDS)
                stack.enter_context(ending(room.talker, lambda sampler: after[sampler.sequence_index]))
            run = Scheduler(room, **options)
            run.add(*sequences, alone=alone)
            run.sequences, run.room = sequences, room
            return run

        yield make


def steps_of(run):
    """Yield what each step returns, while there is anything to do."""
    while run.is_busy:
        yield run.step()


def said(run):
    """Return the codes of every sequence. A finished one gives no more."""
    closed = set()
    for outputs in steps_of(run):
        for sequence, _ in outputs:
            assert sequence not in closed
            if sequence.finished:
                closed.add(sequence)
    assert closed == set(run.sequences)
    return [torch.cat(sequence.codes) for sequence in run.sequences]


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_a_sequence_gives_the_same_codes_in_any_row_and_batch(scheduled, family, params):
    alone = [said(scheduled(1, params, [index]))[0] for index in ALL]
    assert len({len(codes) for codes in alone}) > 4
    assert not torch.equal(alone[0][:20], alone[2][:20])
    for rows in (1, 3, 9):
        run = scheduled(rows, params)
        for codes, expected in zip(said(run), alone, strict=True):
            assert torch.equal(codes, expected)
        assert all(one.ended and one.num_frames == len(codes) for one, codes in zip(run.sequences, alone, strict=True))


@pytest.mark.parametrize("unread", [1, 2, 5])
def test_late_copies_belong_to_their_own_sequence(scheduled, unread):
    expected = said(scheduled(3))
    run = scheduled(3)
    run.unread = unread
    for codes, other in zip(said(run), expected, strict=True):
        assert torch.equal(codes, other)


def test_rows_are_refilled_in_order_without_waiting_for_slow_sequences(scheduled):
    started, done = {row: [] for row in range(2)}, []
    run = scheduled(2)
    for outputs in steps_of(run):
        done += [sequence.index for sequence, _ in outputs if sequence.finished]
        for row, sequence in enumerate(run.running):
            if sequence is not None and sequence.index not in started[row]:
                started[row].append(sequence.index)
    assert started == {0: [0, 3, 4, 5], 1: [1, 2, 6]}
    assert done == [1, 0, 3, 4, 2, 6, 5]


def test_each_sequence_has_its_own_limit(scheduled):
    """By the setting or by the cache. A prompt that fills the cache gives no frames."""
    run = scheduled(2, SamplingParams(seed=1, max_frames=50), ends=False, context=84)
    lengths = [len(sequence) for sequence in run.sequences]
    frames = [len(codes) for codes in said(run)]
    assert frames == [min(50, 84 - length - 8 + 1) for length in lengths]
    assert not any(sequence.ended for sequence in run.sequences) and frames[0] == 50 > frames[-1]
    full = scheduled(1, indexes=[0], ends=False, context=lengths[0])
    assert [len(codes) for codes in said(full)] == [0]


def test_stopping_in_the_middle_leaves_the_runner_usable(scheduled):
    expected = said(scheduled(2))
    run = scheduled(2)
    for _ in zip(range(30), steps_of(run), strict=False):
        pass
    again = Scheduler(run.room)
    again.sequences = [dataclasses.replace(sequence) for sequence in run.sequences]
    again.add(*again.sequences)
    for codes, other in zip(said(again), expected, strict=True):
        assert torch.equal(codes, other)


def test_sequences_may_be_added_while_it_runs(scheduled):
    """One after ten steps, and each of the others when the last running one has finished."""
    expected = said(scheduled(2))
    run = scheduled(2)
    later = [run.waiting.pop() for _ in range(5)][::-1]
    for count, _ in enumerate(steps_of(run)):
        if later and (count == 10 or not (run.waiting or run.is_busy)):
            run.add(later.pop(0))
    assert not later
    for sequence, other in zip(run.sequences, expected, strict=True):
        assert torch.equal(torch.cat(sequence.codes), other)


@pytest.mark.parametrize("after", [2, 6, 25])
def test_a_dropped_sequence_ends_and_frees_its_row(scheduled, after):
    expected = said(scheduled(2))
    run = scheduled(2)
    dropped, frames = [run.sequences[0], run.sequences[5]], 0  # one that runs and one that waits
    for count, outputs in enumerate(steps_of(run)):
        assert count <= after or not any(sequence in dropped for sequence, _ in outputs)
        if count == after:
            following = run.waiting[0]
            for sequence in dropped:
                run.drop(sequence)
            frames = dropped[0].num_frames
        if count == after + 1:
            assert run.running[0] is following, "its row is taken within a step"
    assert dropped[0].num_frames == frames < len(expected[0]) and not dropped[0].ended and not dropped[1].codes
    for sequence, other in zip(run.sequences, expected, strict=True):
        assert sequence in dropped or torch.equal(torch.cat(sequence.codes), other)


def test_dropping_all_ends_the_run(scheduled):
    run = scheduled(2)
    for count, _ in enumerate(steps_of(run)):
        assert count <= 8
        if count == 8:
            for sequence in run.sequences:
                run.drop(sequence)
    assert not run.waiting and not run.is_busy


@pytest.mark.parametrize("seed", range(6))
def test_sequences_added_and_dropped_at_any_time_give_their_own_codes(scheduled, seed):
    roll, expected = random.Random(seed), said(scheduled(2))
    run = scheduled(roll.choice((1, 2, 4)), first_frames=[11], alone=roll.random() < 0.4)
    for sequence in run.sequences:
        sequence.listened = roll.random() < 0.5
    later, dropped = [run.waiting.pop() for _ in range(roll.randrange(7))], []
    run.unread = roll.choice((0, 1, 3))
    for outputs in steps_of(run):
        assert not any(sequence in dropped for sequence, _ in outputs)
        unfinished = [sequence for sequence in run.sequences if not (sequence.finished or sequence in later)]
        if unfinished and roll.random() < 0.02:
            dropped.append(roll.choice(unfinished))
            run.drop(dropped[-1])
        if later and (roll.random() < 0.1 or not (run.waiting or run.is_busy)):
            run.add(later.pop(roll.randrange(len(later))))
    assert not later and not run.waiting and all(sequence.finished for sequence in run.sequences)
    for sequence, other in zip(run.sequences, expected, strict=True):
        codes = torch.cat([other[:0], *sequence.codes])
        assert torch.equal(codes, other[: len(codes)]) and (sequence in dropped or len(codes) == len(other))


def test_each_sequence_has_its_own_parameters(scheduled):
    alone, plain = said(scheduled(1, GREEDY, [2]))[0], said(scheduled(3))
    run = scheduled(3)
    run.sequences[2].params = GREEDY
    run.sequences[0].params = dataclasses.replace(SAMPLED, seed=8)
    run.sequences[5].params = dataclasses.replace(SAMPLED, max_frames=4)
    codes = said(run)
    assert torch.equal(codes[2], alone) and not torch.equal(codes[0], plain[0]) and len(codes[5]) == 4
    assert all(torch.equal(codes[index], plain[index]) for index in (1, 3, 4, 6))


def test_the_first_sequence_is_decoded_alone_until_it_sounds(scheduled, family):
    expected, steps, live = said(scheduled(3)), 11 + 8 - (family == "v3"), []
    run = scheduled(3, first_frames=[11], alone=True)
    for count, outputs in enumerate(steps_of(run)):
        assert count >= steps or not outputs
        if count == steps:
            assert [(sequence.index, len(frames)) for sequence, frames in outputs] == [(0, 11)] and set(live) == {1}
        live.append(sum(sequence is not None for sequence in run.running))
    assert max(live) == 3 and len(live) < sum(ENDS) + 15 * len(ENDS)
    for sequence, other in zip(run.sequences, expected, strict=True):
        assert torch.equal(torch.cat(sequence.codes), other)


def test_a_listener_s_first_frames_are_copied_in_the_step_that_completes_them(scheduled):
    for first in (5, 6, 7, 8):  # only one of them falls on a regular copy
        run = scheduled(2, indexes=[2, 0], first_frames=[first])
        listened = run.sequences[0]
        listened.listened = True
        next(outputs for outputs in steps_of(run) if listened.num_frames >= first)
        assert listened.num_frames == first


@pytest.mark.parametrize("unread", [0, 1, 3])
def test_a_listener_s_first_frames_are_read_once_the_next_step_is_queued(scheduled, family, unread):
    run = scheduled(2, indexes=[2, 0], first_frames=[6])
    run.unread, run.sequences[0].listened = unread, True
    next(outputs for outputs in steps_of(run) if run.sequences[0].num_frames >= 6)
    assert run.num_steps == 6 + 8 - (family == "v3") + (unread > 0)


def test_a_lone_listener_s_first_frames_are_read_before_the_talker_goes_on(scheduled, monkeypatch):
    expected = said(scheduled(2, indexes=[2]))
    run, decoded = scheduled(2, indexes=[2], first_frames=[6], alone=True), []
    (listened,), decode = run.sequences, run.room.talker.decode
    listened.listened = True
    monkeypatch.setattr(run.room.talker, "decode", lambda state: decoded.append(None) or decode(state))
    steps = steps_of(run)
    for _ in steps:
        if listened.num_frames == 6:
            assert len(decoded) == run.num_steps - 1
            break
    else:
        pytest.fail("its first frames have not been read alone")
    for _ in steps:
        pass
    assert torch.equal(torch.cat(listened.codes), expected[0])


@pytest.mark.parametrize("is_running", [False, True])
def test_a_second_listener_is_decoded_beside_the_first(scheduled, is_running):
    expected, run = said(scheduled(3)), scheduled(3, indexes=[0], first_frames=[11], alone=True)
    run.sequences[0].listened = True
    steps = steps_of(run)
    if is_running:
        next(steps)
    others = [one for one in scheduled(3).sequences if one.index in (2, 3)]
    run.add(others[0])
    assert run.alone
    others[1].listened = True
    run.add(others[1])
    for _ in steps:
        if all(run.running):
            assert not any(one.num_frames for one in run.sequences + others)
            break
    else:
        pytest.fail("they have not run together")
    for _ in steps:
        pass
    for sequence in run.sequences + others:
        assert torch.equal(torch.cat(sequence.codes), expected[sequence.index])


def order(run):
    """Return the numbers of the sequences that run together, whenever these change."""
    seen = []
    for _ in steps_of(run):
        live = [one.index for one in run.running if one is not None]
        if live and live != (seen or [[]])[-1]:
            seen.append(live)
    return seen


@pytest.mark.parametrize("in_order", [True, False])
def test_later_sequences_of_a_caller_wait_for_one_that_leads_on_a_cpu(scheduled, in_order):
    run = scheduled(3, indexes=[0, 2, 3, 6], in_order=in_order)
    for place, sequence in enumerate(run.sequences):
        sequence.place, sequence.leads = place, place < 2
    run.sequences[3].caller = 1  # waits for nobody
    beside = {pair for live in order(run) for pair in itertools.combinations(sorted(live), 2)}
    assert (0, 6) in beside and beside.isdisjoint([(0, 2), (0, 3), (2, 3)]) == in_order


def test_a_caller_s_sequences_begin_in_the_text_s_order(scheduled):
    """A chunk that is spoken again is heard before those after it, though it waits for a row later."""
    run = scheduled(1, indexes=[0, 3, 6, 1])
    for place, sequence in zip([0, 2, 3, 1], run.sequences, strict=True):
        sequence.place = place
    assert order(run) == [[0], [1], [3], [6]]


def test_a_sequence_decoded_alone_may_end_before_its_first_frames(scheduled):
    expected = said(scheduled(2, indexes=[1, 2, 3]))
    run = scheduled(2, indexes=[1, 2, 3], first_frames=[11], alone=True)
    for codes, other in zip(said(run), expected, strict=True):
        assert torch.equal(codes, other)


@pytest.mark.parametrize("short", [3, scheduler_module.MAX_HELD, 100])
def test_prompts_wait_for_a_stream_that_runs_short(scheduled, monkeypatch, short):
    expected = said(scheduled(3))
    first, second = scheduled(3, indexes=[2]), scheduled(3, indexes=[4, 5])
    until = [0]
    run = Scheduler(first.room, runs_short=lambda: run.num_steps < until[0])
    run.add(*first.sequences)
    for _ in range(5):
        run.step()
    run.add(*second.sequences)
    until[0], began = run.num_steps + short, run.num_steps
    steps = [run.num_steps for _ in steps_of(run) if not run.waiting]
    assert steps[0] - began == min(short, scheduler_module.MAX_HELD)
    for sequence in first.sequences + second.sequences:
        assert torch.equal(torch.cat([expected[4][:0], *sequence.codes]), expected[sequence.index])


def test_every_first_window_s_frames_are_copied_in_the_step_that_completes_them(scheduled):
    run = scheduled(2, indexes=[2, 0], first_frames=[6, 8, 13])
    listened, counts = run.sequences[0], set()
    listened.listened = True
    for _ in steps_of(run):
        counts.add(listened.num_frames)
    assert counts >= {6, 8, 13}


def test_a_step_is_a_fill_or_a_step_of_all_rows(scheduled, monkeypatch):
    run, fills = scheduled(2), []
    begin = run.room.begin
    monkeypatch.setattr(run.room, "begin", lambda *args: fills.append(args[0]) or begin(*args))
    assert sum(1 for _ in steps_of(run)) == run.num_steps + len(fills) and CHECK_EVERY > 1
    assert len(fills[0]) == 2 and sum(map(len, fills)) == len(ENDS)


def groups_of(run, monkeypatch):
    """The indexes of each group that the run prefills together, and the steps done before it."""
    found, begin = [], run.room.begin

    def noted(admitted, prefixes):
        found.append(([sequence.index for _, sequence in admitted], run.num_steps))
        return begin(admitted, prefixes)

    monkeypatch.setattr(run.room, "begin", noted)
    said(run)
    return found


def test_prompts_share_a_fill_up_to_its_positions(scheduled, monkeypatch):
    run = scheduled(7)
    lengths = [len(sequence) for sequence in run.sequences]
    monkeypatch.setattr(scheduler_module, "MAX_AT_ONCE", sum(lengths[:3]))
    found = groups_of(run, monkeypatch)
    assert found[0] == ([0, 1, 2], 0)
    assert [index for group, _ in found for index in group] == list(ALL) and {steps for _, steps in found} == {0}
    for group, _ in found:
        assert len(group) == 1 or sum(lengths[index] for index in group) <= sum(lengths[:3])


def test_decoding_rows_wait_for_at_most_one_group_of_prompts(scheduled, monkeypatch):
    """Two rows become free at once, and each prompt fills the room alone."""
    monkeypatch.setattr(scheduler_module, "MAX_AT_ONCE", 1)
    run = scheduled(3, indexes=[0, 2, 2, 3, 3])
    for sequence in run.sequences:
        sequence.params = dataclasses.replace(SAMPLED, max_frames=60 if sequence.index == 0 else 6)
    found = groups_of(run, monkeypatch)
    assert [group for group, _ in found] == [[0], [2], [2], [3], [3]]
    steps = [steps for _, steps in found]
    assert steps[:3] == [0, 0, 0] and steps[4] == steps[3] + 1


@pytest.mark.parametrize("unread", [0, 1, 3])
def test_sequences_move_into_the_fewest_rows_and_keep_their_codes(scheduled, monkeypatch, unread):
    expected = said(scheduled(2))
    run, counts, moves = scheduled(7), [], []
    run.unread = unread
    step, move = run.room.step, run.room.state.move_row
    monkeypatch.setattr(ModelRunner, "row_counts", [1, 2, 4, 7])

    def noted_step():
        live = [row for row, one in enumerate(run.running) if one is not None]
        assert run.room.rows == next(rows for rows in (1, 2, 4, 7) if rows >= len(live)) > max(live)
        assert run.room.state.delay.done[[row for row in range(7) if row not in live]].all()
        counts.append(run.room.rows)
        step()

    def noted_move(row, to, filled):
        place = run.place_of(run.running[row])
        moves.append(filled > int(run.room.state.cache.position[row]) and place == (run.room.state.cache, row))
        move(row, to, filled)

    monkeypatch.setattr(run.room, "step", noted_step)
    monkeypatch.setattr(run.room.state, "move_row", noted_move)
    for codes, other in zip(said(run), expected, strict=True):
        assert torch.equal(codes, other)
    assert counts == sorted(counts, reverse=True) and {*counts} == {1, 2, 4, 7} and moves and all(moves)


def test_rows_of_prompts_under_way_are_not_moved_into(scheduled, monkeypatch):
    expected = said(scheduled(3))
    monkeypatch.setattr(prompts, "MAX_AT_ONCE", 1)
    monkeypatch.setattr(ModelRunner, "row_counts", [1, 2, 3])
    for codes, other in zip(said(scheduled(3)), expected, strict=True):
        assert torch.equal(codes, other)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_long_prompt_continues_after_the_next_step(scheduled, monkeypatch, dropped):
    """A prefix and what follows it are two launches, and the rows that decode step between them."""
    expected = said(scheduled(2))
    monkeypatch.setattr(prompts, "MAX_AT_ONCE", 1)
    run, seen = scheduled(2), []
    advance = prompts.PendingFill.advance

    def noted(fill):
        is_complete = advance(fill)
        seen.append((fill.admitted[0][1], run.num_steps))
        return is_complete

    monkeypatch.setattr(prompts.PendingFill, "advance", noted)
    long = run.sequences[3]
    for _ in steps_of(run):
        if dropped and seen[-1][0] is long and not long.finished and long not in run.running:
            run.drop(long)
    steps = [at for sequence, at in seen if sequence is long]
    assert steps == [steps[0], steps[0] + 1]
    for sequence, other in zip(run.sequences, expected, strict=True):
        if dropped and sequence is long:
            assert not sequence.codes and not sequence.ended
        else:
            assert torch.equal(torch.cat(sequence.codes), other)
