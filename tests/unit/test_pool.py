"""Which member decodes what: decisions alone."""

import threading

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, Turn
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.engines.pool.pool import Member, Pool
from higgs_tts.engine.engines.pool.session import PoolSession
from higgs_tts.engine.speech.decoder import Heard, SessionReport
from higgs_tts.engine.speech.speech_input import SpeechInput

LOST = HiggsError("went away.")


def sequences(count, **settings):
    return [Sequence([number], index=number, **settings) for number in range(count)]


def sound(start, stop):
    return torch.arange(float(start), float(stop))


def whole(copy, start=0, stop=10):
    copy.fill(torch.zeros(1, 8, dtype=torch.int64), True)
    return Heard(copy, sound(start, stop), is_last=True)


@pytest.fixture
def members():
    return [Member("One", "card"), Member("Two", "card"), Member("Three", "other")]


def test_members_take_what_they_have_room_for_and_all_is_heard_once(members):
    pool, asked = Pool(members), sequences(5)
    pool.submit(*asked)
    taken = [pool.take(member, 2) for member in members]
    assert [[copy.index for copy in copies] for copies in taken] == [[0, 1], [2, 3], [4]]
    heard = [pool.hear(member, whole(copy)) for member, copies in zip(members, taken, strict=True) for copy in copies]
    assert pool.is_done and [one.sequence for (one,) in heard] == asked
    assert all(one.is_last and len(one.wav) == 10 and one.sequence.ended for (one,) in heard)


def test_a_lost_member_s_sequences_are_given_out_first(members):
    pool, asked = Pool(members), sequences(4)
    pool.submit(*asked)
    one, two, _ = members
    copies = pool.take(one, 2)
    pool.take(two, 1)
    given_back = pool.lose(one, LOST)
    assert [heard.sequence for heard in given_back] == asked[:2] and not any(heard.void for heard in given_back)
    assert [copy.index for copy in pool.take(two, 3)] == [0, 1, 3]
    assert pool.hear(one, whole(copies[0])) == [] and pool.take(one, 5) == [], "what it still says counts for nothing"


def test_heard_sound_goes_on_with_a_member_of_the_same_kind(members):
    pool, (asked,) = Pool(members), sequences(1, listened=True)
    one, two, three = members
    pool.submit(asked)
    (copy,) = pool.take(one, 1)
    (heard,) = pool.hear(one, Heard(copy, sound(0, 6)))
    assert heard.wav.tolist() == [0, 1, 2, 3, 4, 5]
    (again,) = pool.lose(one, LOST)
    assert not again.void and not pool.has_work(three) and pool.take(three, 1) == []
    (copy,) = pool.take(two, 1)
    assert [pool.hear(two, Heard(copy, sound(*span)))[0].wav.tolist() for span in ((0, 4), (4, 8))] == [[], [6, 7]]
    (last,) = pool.hear(two, whole(copy, 8, 10))
    assert last.wav.tolist() == [8, 9] and pool.is_done


def test_what_the_check_withholds_is_not_heard_when_a_member_is_lost(members, written):
    pool, heard = Pool(members), []
    what = SpeechInput((Turn("", "Hello."),), {}, SamplingParams(retries=0))
    planner = Engine(EngineConfig(str(written["v3"]), device="cpu", context=512)).planner
    request = planner.request(what, Listener(on_audio=lambda wav: heard.extend(wav.tolist())))
    _, asked = next(request.stages())

    def tell(outputs):
        for output in outputs:
            request.hear(output)

    one, two, _ = members
    pool.submit(*asked)
    (copy,) = pool.take(one, 1)
    tell(pool.hear(one, Heard(copy, sound(0, 6), cleared=4)))
    assert heard == [0, 1, 2, 3]
    tell(pool.lose(one, LOST))
    assert heard == [0, 1, 2, 3]
    (copy,) = pool.take(two, 1)
    tell(pool.hear(two, Heard(copy, sound(0, 3), cleared=2)))
    tell(pool.hear(two, Heard(copy, sound(3, 8), cleared=5)))
    assert heard == [0, 1, 2, 3, 4]
    tell(pool.hear(two, whole(copy, 8, 10)))
    assert heard == [*range(10)] and request.is_settled


def test_heard_sound_is_discarded_if_no_member_of_its_kind_is_left(members):
    pool, (asked,) = Pool(members), sequences(1, listened=True)
    one, two, three = members
    pool.submit(asked)
    (copy,) = pool.take(one, 1)
    pool.hear(one, Heard(copy, sound(0, 6)))
    pool.lose(one, LOST, returns=True)
    assert not pool.lose(two, LOST)[-1:], "another takes the place of the first"
    (void,) = pool.give_up(one)
    assert void.void == "One went away." and void.sequence is asked
    (copy,) = pool.take(three, 1)
    assert pool.hear(three, whole(copy))[0].wav.tolist() == list(range(10))


def test_unheard_sound_arrives_whole(members):
    pool, (asked,) = Pool(members), sequences(1)
    pool.submit(asked)
    (copy,) = pool.take(members[0], 1)
    copy.num_frames = 3
    (first,) = pool.hear(members[0], Heard(copy, sound(0, 6)))
    assert not len(first.wav) and asked.num_frames == 3
    assert pool.hear(members[0], whole(copy, 6, 10))[0].wav.tolist() == list(range(10))


def test_a_dropped_sequence_is_dropped_by_all_members(members):
    pool, asked = Pool(members), sequences(3)
    pool.submit(*asked)
    (copy,) = pool.take(members[0], 1)
    assert pool.drop(*asked[:2]) == [(members[0], copy)]
    assert pool.hear(members[0], whole(copy)) == [] and not pool.is_done
    assert [one.index for one in pool.take(members[1], 5)] == [2]


def test_a_failing_member_rests_longer_and_is_lost_after_three_failures(members):
    pool, asked = Pool(members[:1]), sequences(1)
    pool.submit(*asked)
    (one,), now = members[:1], 100.0
    for rest in (0.5, 1.0):
        (copy,) = pool.take(one, 1, now)
        pool.fail(one, copy, LOST, now)
        assert one.rest_until == now + rest and pool.take(one, 1, now + rest - 0.01) == []
        now += rest
    (copy,) = pool.take(one, 1, now)
    pool.fail(one, copy, LOST, now)
    assert one.error is LOST and not pool.left


def test_a_busy_member_is_retried_for_three_minutes(members):
    pool, asked = Pool(members[:1]), sequences(1)
    pool.submit(*asked)
    one, now = members[0], 0.0
    while one.error is None:
        (copy,) = pool.take(one, 1, now)
        pool.fail(one, copy, LOST, now, is_busy=True, rest=20.0)
        now = one.rest_until
    assert 180 < now < 230


def test_a_free_row_goes_to_the_caller_with_the_fewest(members):
    pool = Pool(members[:1])
    pool.submit(*sequences(5, caller=1), *sequences(2, caller=2))
    assert [copy.caller for copy in pool.take(members[0], 7)] == [1, 2, 1, 2, 1, 1, 1]


def test_a_lost_member_s_seat_is_filled_again(members):
    pool = Pool(members, seats=1)
    pool.submit(*sequences(1))
    assert pool.start() == members[:1] and pool.start() == []
    pool.lose(members[0], LOST)
    assert pool.start() == [members[1]]


def test_a_finished_sequence_is_handed_out_with_its_codes(members):
    pool, (asked,) = Pool(members), sequences(1)
    asked.fill(torch.ones(4, 8, dtype=torch.int64), False)
    pool.submit(asked)
    (copy,) = pool.take(members[0], 1)
    assert copy.finished and not copy.ended and torch.equal(torch.cat(copy.codes), torch.ones(4, 8))
    pool.lose(members[0], LOST)
    assert asked.finished and asked.num_frames == 4


@pytest.mark.parametrize("seats", [1, 2])
def test_a_spare_that_alone_can_go_on_with_what_was_heard_is_started(members, seats):
    one, two, three = members[0], members[2], members[1]
    pool, (asked,) = Pool([one, two, three], seats), sequences(1, listened=True)
    pool.submit(asked)
    assert pool.start() == [one, two][:seats] and pool.start() == []
    pool.hear(one, Heard(*pool.take(one, 1), sound(0, 6)))
    assert not pool.lose(one, LOST)[0].void and not pool.has_work(two)
    assert pool.start() == [two, three][seats - 1 :] and pool.start() == []
    assert pool.hear(three, whole(*pool.take(three, 1)))[0].wav.tolist() == list(range(10))[6:]


def test_what_was_heard_is_void_if_another_kind_takes_the_lost_one_s_place(members):
    pool, (asked,) = Pool([members[0]]), sequences(1, listened=True)
    pool.submit(asked)
    pool.hear(members[0], Heard(*pool.take(members[0], 1), sound(0, 6)))
    assert not pool.lose(members[0], LOST, returns=True)[0].void
    (void,) = pool.join(members[2], members[0])
    assert void.void == "One went away." and void.sequence is asked
    assert pool.hear(members[2], whole(*pool.take(members[2], 1)))[0].wav.tolist() == list(range(10))


class Threadless(PoolSession):
    """A session whose members are the test."""

    def __init__(self, pool):
        super().__init__(pool)
        self.tell, self.decide = self._tell, self._decide

    @property
    def report(self):
        return SessionReport()

    def drop(self, *sequences):
        raise NotImplementedError

    def encode_voice(self, clip):
        raise NotImplementedError

    def _start(self, members):
        pass

    def _end(self):
        return HiggsError("No member is left.")


def test_a_call_that_is_complete_survives_the_loss_of_all_members(members):
    pool, asked = Pool(members[:1]), sequences(2)
    session = Threadless(pool)
    session.submit(asked[0])
    (copy,) = pool.take(members[0], 1)
    session.tell(pool.hear, members[0], whole(copy))
    session.tell(pool.lose, members[0], LOST)
    (heard,) = session.step()
    assert not session.is_busy
    assert heard.sequence is asked[0] and heard.is_last and not pool.left
    session.submit(asked[1])
    with pytest.raises(HiggsError, match="No member is left"):
        session.step()


def test_what_a_decision_voids_is_told_before_another_member_goes_on(members):
    pool, (asked,) = Pool(members), sequences(1, listened=True)
    session = Threadless(pool)
    session.submit(asked)
    (copy,) = pool.take(members[2], 1)
    pool.hear(members[2], Heard(copy, sound(0, 6)))

    def go_on():
        (copy,) = pool.take(members[0], 1)
        return pool.hear(members[0], Heard(copy, sound(0, 8)))

    other = threading.Thread(target=session.decide, args=[go_on])

    def fail():
        other.start()  # waits for the lock
        return pool.lose(members[2], LOST)

    session.decide(fail)
    other.join()
    void, again = session.step()
    assert void.void == "Three went away." and len(again.wav) == 8
