"""Requests of many callers in one batch: each says what it says alone, whoever comes and goes beside it."""

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, SamplingParams, Turn, Voice
from higgs_tts.engine.request import Listener

TEXTS = ["One apple.", "Two apples are here. And three of them are there.", "Four."]
PARAMS = SamplingParams(max_frames=40, seed=3, chunk_seconds=2.5, retries=0)


class Caller:
    """What one request is told."""

    def __init__(self, listens=False):
        self.heard = []
        self.listener = Listener(lambda done, expected: None, self.heard.append if listens else None)

    def of(self, batch, text, voice=None, params=PARAMS):
        return batch.add((Turn("", text),), {"": voice} if voice else {}, params, None, self.listener)


def finish(batch):
    """Steps until all are done -> the finished requests, in order."""
    done = []
    for _ in range(2000):
        done += batch.step()
        if not len(batch):
            return done
    raise AssertionError("it does not end")


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine:
        yield engine


@pytest.fixture(scope="module")
def voice():
    return Voice(torch.randint(0, 1024, (60, 8), generator=torch.Generator().manual_seed(1)), "A reference.")


def test_each_says_what_it_says_alone(engine, voice):
    alone = [engine.speak(text, given, PARAMS) for text in TEXTS for given in (None, voice)]
    callers = [Caller(listens=number == 1) for number in range(6)]
    with engine.together(rows=3) as batch:
        wanted = [(text, given) for text in TEXTS for given in (None, voice)]
        requests = [caller.of(batch, *what) for caller, what in zip(callers[:2], wanted, strict=False)]
        done = [one for _ in range(5) for one in batch.step()]  # the others come later
        requests += [caller.of(batch, *what) for caller, what in zip(callers[2:], wanted[2:], strict=True)]
        done += finish(batch)
        spoken = [request.result() for request in requests]
    assert set(done) == set(requests) and len(done) == 6
    for one, other in zip(spoken, alone, strict=True):
        assert torch.equal(one.codes, other.codes) and one.stopped == other.stopped
        assert (one.wav - other.wav).abs().max() < 1e-4
    assert torch.equal(torch.cat(callers[1].heard), spoken[1].wav)


def test_who_leaves_frees_the_row_and_changes_nobody(engine, voice):
    leaving = Caller(listens=True)
    with engine.together(rows=2) as batch:
        leaver, stays = leaving.of(batch, TEXTS[1], voice), Caller().of(batch, TEXTS[0], voice)
        for _ in range(6):
            batch.step()
        batch.drop(leaver)
        heard = len(leaving.heard)
        late = Caller().of(batch, TEXTS[2], voice)
        assert set(finish(batch)) == {stays, late} and len(leaving.heard) == heard
        said = stays.result().codes, late.result().codes
    assert torch.equal(said[0], engine.speak(TEXTS[0], voice, PARAMS).codes)
    assert torch.equal(said[1], engine.speak(TEXTS[2], voice, PARAMS).codes)


def test_what_cannot_be_said_is_refused_and_others_go_on(engine, voice):
    with engine.together(rows=2) as batch:
        stays = Caller().of(batch, TEXTS[0], voice)
        with pytest.raises(HiggsError, match="nothing to say"):
            Caller().of(batch, " ... ")
        with pytest.raises(HiggsError, match="which leaves less than"):
            Caller().of(batch, "word " * 400, voice, SamplingParams(chunk_seconds=0.0))
        with pytest.raises(HiggsError, match="different model"):
            Caller().of(batch, TEXTS[0], Voice(voice.codes, codec="another"))
        assert finish(batch) == [stays]


def test_an_engine_that_is_closed_says_so():
    engine = Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512))
    with pytest.raises(HiggsError, match="not open"), engine.together():
        pass
    engine.open()
    with engine.together(rows=2):
        engine.require_open()
        engine.close()
        with pytest.raises(HiggsError, match="unloaded"):
            engine.require_open()
    assert not engine.opened
