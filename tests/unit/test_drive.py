"""Requests of many callers on one session: each gets the same speech as alone, whatever others do."""

import contextlib
import gc
import itertools

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, SamplingParams, Turn, Voice
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.decode.prompts import PendingFill
from higgs_tts.engine.speech.decoder import Stage
from higgs_tts.engine.speech.drive import Drive
from higgs_tts.engine.speech.speech_input import SpeechInput
from higgs_tts.tests.watched import ending

TEXTS = ["One apple.", "Two apples are here. And three of them are there.", "Four."]
PARAMS = SamplingParams(max_frames=40, seed=3, chunk_seconds=2.5, retries=0)


class Calls:
    """Callers of one session."""

    def __init__(self, engine, drive):
        self.engine, self.drive, self.heard = engine, drive, {}

    def __call__(self, text, voice=None, params=PARAMS, listens=False):
        heard = []
        what = SpeechInput((Turn("", text),), {"": voice} if voice else {}, params)
        request = self.engine.planner.request(what, Listener(on_audio=heard.append if listens else None))
        self.drive.add(request, (sequences for _, sequences in request.stages()))
        self.heard[request] = heard
        return request

    def run(self, steps=None):
        """Run so many steps, or until all have ended. Returns what has ended."""
        ended = []
        for count in itertools.count():
            if count == steps or not self.drive.is_busy:
                return ended
            ended += self.drive.step()


@contextlib.contextmanager
def calls_of(engine, rows):
    with (
        torch.inference_mode(),
        engine.decoding() as decoder,
        decoder.session(Stage(rows, engine.planner.context)) as session,
    ):
        yield Calls(engine, Drive(session))


@pytest.fixture(scope="module")
def engine(written):
    """A tiny one. The chunks of a text end at different frames."""
    with (
        Engine(EngineConfig(str(written["v3"]), device="cpu", context=1024)) as engine,
        ending(engine.loaded.talker, lambda sampler: 15 + 7 * sampler.sequence_index % 12),
    ):
        yield engine


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randint(0, 1024, (60, 8), generator=torch.Generator().manual_seed(1)), "A reference.")


def test_each_request_gives_the_codes_it_gives_alone(engine, voice):
    wanted = [(text, given) for text in TEXTS for given in (None, voice)]
    alone = [engine.speak(*what, PARAMS) for what in wanted]
    with calls_of(engine, 3) as call:
        requests = [call(*wanted[0]), call(*wanted[1], listens=True)]
        ended = call.run(5)  # the others come later
        requests += [call(*what) for what in wanted[2:]]
        ended += call.run()
    assert {one.request for one in ended} == set(requests) and len(ended) == 6 and not any(one.error for one in ended)
    for request, other in zip(requests, alone, strict=True):
        speech = request.result()
        assert torch.equal(speech.codes, other.codes) and speech.stopped == other.stopped
        assert (speech.wav - other.wav).abs().max() < 1e-4
        assert not call.heard[request] or torch.equal(torch.cat(call.heard[request]), speech.wav)
    assert call.heard[requests[1]]


def test_a_leaving_caller_frees_its_row_and_changes_no_other(engine, voice):
    with calls_of(engine, 2) as call:
        leaver, stays = call(TEXTS[1], voice, listens=True), call(TEXTS[0], voice)
        call.run(6)
        call.drive.drop(leaver)
        heard = len(call.heard[leaver])
        late = call(TEXTS[2], voice)
        assert {one.request for one in call.run()} == {stays, late} and len(call.heard[leaver]) == heard
    assert torch.equal(stays.result().codes, engine.speak(TEXTS[0], voice, PARAMS).codes)
    assert torch.equal(late.result().codes, engine.speak(TEXTS[2], voice, PARAMS).codes)


def test_an_unspeakable_text_is_refused_and_others_go_on(engine, voice):
    with calls_of(engine, 2) as call:
        stays = call(TEXTS[0], voice)
        with pytest.raises(HiggsError, match="nothing to speak"):
            call(" ... ")
        with pytest.raises(HiggsError, match="which leaves less than"):
            call(TEXTS[0], Voice(torch.zeros((1024, 8), dtype=torch.int64)))
        with pytest.raises(HiggsError, match="different model"):
            call(TEXTS[0], Voice(voice.codes, codec="another"))
        assert [one.request for one in call.run()] == [stays]


@pytest.mark.parametrize("what", ["no memory for its prompt", "values that are not numbers"])
def test_an_error_in_one_sequence_ends_only_its_caller(engine, voice, monkeypatch, before_steps, what):
    advance, bad = PendingFill.advance, []

    def fails(fill):
        if rows := [row for row, sequence in fill.admitted if sequence.text == TEXTS[2]]:
            bad.extend(rows)
            if what == "no memory for its prompt":
                raise torch.cuda.OutOfMemoryError("planted")
        return advance(fill)

    def spoil(backend):
        if bad and what != "no memory for its prompt":
            backend.state.logits[bad.pop()] = float("nan")

    expected = engine.speak(TEXTS[1], voice, PARAMS)
    monkeypatch.setattr(PendingFill, "advance", fails)
    before_steps(spoil)
    with calls_of(engine, 2) as call:
        stays, ends = call(TEXTS[1], voice), call(TEXTS[2], voice)
        errors = {one.request: one.error for one in call.run()}
        bad.clear()
        later = call(TEXTS[1], voice)
        assert [one.request for one in call.run()] == [later]
    assert errors[stays] is None and isinstance(errors[ends], (HiggsError, torch.cuda.OutOfMemoryError))
    for request in (stays, later):
        assert torch.equal(request.result().codes, expected.codes)


def test_a_free_row_goes_to_the_caller_with_the_fewest(engine, voice):
    """A long text does not hold up short ones that come after it."""
    with calls_of(engine, 2) as call:
        long = call(" ".join(TEXTS * 6), voice)
        short = [call(text, voice) for text in (TEXTS[0], TEXTS[2])]
        order = [one.request for one in call.run()]
    assert set(order[:2]) == set(short) and order[2] is long


def test_a_closed_engine_is_a_clear_error(written):
    engine = Engine(EngineConfig(str(written["v3"]), device="cpu", context=512))
    with pytest.raises(HiggsError, match="not open"), engine.decoding():
        pass
    engine.open()
    with calls_of(engine, 2) as call:
        call("One.")
        call.run(2)
        engine.close()
        with pytest.raises(HiggsError, match="unloaded"):
            call.run()
    assert not engine.opened


def test_a_session_keeps_nothing_of_callers_who_left(engine):
    """But for the last sequence of each row, and the last that began alone. It may be open for days."""
    with calls_of(engine, 2) as call:
        for steps in (0, 1, 2, 30, 30, 30, 30, 30):
            leaves = call(TEXTS[1], listens=True)
            call.run(steps)
            call.drive.drop(leaves)
        call(TEXTS[0])
        call.run()
        del leaves, call.heard
        gc.collect()
        held = [one for one in gc.get_objects() if type(one) is Sequence and TEXTS[1].startswith(one.text)]
        assert len(held) <= 3
