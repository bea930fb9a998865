"""Bad sentences are spoken again by themselves: which, in what voice, and how they take their places."""

import math
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    BUILT_IN_CLIPS,
    EMBEDDED,
    Engine,
    EngineConfig,
    Listener,
    SamplingParams,
    Turn,
    Voice,
    read_clip,
    transcript_of,
)
from higgs_tts.engine.core.config import FRAME_SAMPLES
from higgs_tts.engine.core.sequence import Bounds, Sequence
from higgs_tts.engine.prompt import builder
from higgs_tts.engine.speech.attempts import Attempts, badness, seed_of
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.words.check import ChunkCheck

TEXT = "One apple is on the table. Two pears are in the bowl. Three plums fell on the floor. Four nuts are left."
FRAMES = 40  # of each sentence: 30 of sound, then a pause of 10
CODES = torch.arange(4 * FRAMES)[:, None].expand(-1, 8) % 1024
PARAMS = SamplingParams(seed=5, max_frames=400)


def sound(sentences=4, level=0.1, seed=0):
    wav = level * torch.randn(sentences, FRAMES, FRAME_SAMPLES, generator=torch.Generator().manual_seed(seed))
    wav[:, 30:] = 0
    return wav.flatten()


def verdict(*bad, fixed=0):
    """Return the verdict on TEXT with these sentences said again."""
    starts = tuple(range(0, 4 * FRAMES, FRAMES))
    passages = [
        Passage(
            (one, one + 1), (starts[one], starts[one] + FRAMES), (Doubt("again", "are", (0, 1), (starts[one],) * 2),)
        )
        for one in bad
    ]
    return Verdict("attention", starts, tuple(passages), fixed)


def spoken(codes=CODES, text=TEXT, found=None, **more):
    sequence = Sequence([1], text=text, expected=100, **more)
    sequence.fill(codes, ended=True)
    sequence.verdict = verdict() if found is None else found
    return sequence


class Speaker:
    """Builds the sequences of passages, and remembers what was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, chunk, text, voice, number):
        self.asked.append((text, voice, number))
        return Sequence([1], text=text, expected=40)


def said(sequence, first=500, found=None, frames=FRAMES):
    sequence.fill(torch.arange(first, first + frames)[:, None].expand(-1, 8), ended=True)
    sequence.verdict = verdict() if found is None else found
    return sequence


def test_a_bad_sentence_alone_is_spoken_again_and_takes_its_place():
    speak, chunk = Speaker(), spoken(found=verdict(1))
    attempts = Attempts(chunk, 2, speak)
    (again,) = attempts.add(chunk, sound())
    assert speak.asked[0][0] == "Two pears are in the bowl." and speak.asked[0][2] == 1
    (spliced,) = attempts.add(said(again), sound(1))
    assert attempts.kept is None and spliced.finished and spliced.ended and spliced.text == TEXT
    codes = torch.cat(spliced.codes)[:, 0].tolist()
    kept = [code for code in codes if code < 500]
    assert kept == [code for code in range(160) if code not in range(40, 70)], "the pauses stay"
    assert codes[40 : 40 + len(codes) - len(kept)] == list(range(500, 500 + len(codes) - len(kept)))
    assert 30 <= len(codes) - len(kept) <= 36
    spliced.verdict = verdict()
    assert attempts.add(spliced, sound()) == [] and attempts.kept is spliced and attempts.flaws == [()]
    (repair,) = attempts.repairs
    assert (repair.text, repair.flaws, repair.kept) == ("Two pears are in the bowl.", [("again",), ()], 2)


def test_the_voice_is_the_chunk_s_own_or_its_good_sentences():
    given = Voice(torch.zeros(30, 8, dtype=torch.int64), "Hello.")
    for chunk, want in ((spoken(found=verdict(1), voice=given), given), (spoken(found=verdict(1)), None)):
        speak = Speaker()
        Attempts(chunk, 2, speak).add(chunk, sound())
        voice = speak.asked[0][1]
        if want is None:
            assert voice.transcript == "Three plums fell on the floor. Four nuts are left."
            assert torch.equal(voice.codes, CODES[2 * FRAMES :])
        else:
            assert voice is want
    long = CODES.repeat(4, 1)
    chunk = spoken(long, found=replace(verdict(3), starts=(0, 160, 320, 480)))
    speak = Speaker()
    Attempts(chunk, 2, speak).add(chunk, sound(16))
    voice = speak.asked[0][1]
    assert len(voice.codes) == 160 and voice.transcript == "One apple is on the table.", "ten seconds at most"


def test_tries_go_on_to_the_next_seed_and_the_best_is_kept():
    speak, chunk = Speaker(), spoken(found=verdict(2))
    attempts = Attempts(chunk, 2, speak)
    (first,) = attempts.add(chunk, sound())
    worse = Verdict("attention", (0,), (Passage((0, 1), (0, 40), (Doubt("missing", "", (0, 1), (0, 0)),) * 2),))
    (second,) = attempts.add(said(first, found=worse), sound(1))
    unsure = Verdict("attention", (0,), (Passage((0, 1), (0, 40), (Doubt("cut", "", (0, 1), (0, 0)),)),))
    (spliced,) = attempts.add(said(second, 700, unsure), sound(1))
    assert [number for *_, number in speak.asked] == [1, 2] and 700 in torch.cat(spliced.codes)[:, 0].tolist()
    spliced.verdict = unsure
    attempts.add(spliced, sound())
    assert attempts.kept is spliced and attempts.flaws == [("cut",)]
    assert attempts.repairs[0].kept == 3 and attempts.repairs[0].flaws == [("again",), ("missing", "missing"), ("cut",)]


def test_speech_stays_if_no_try_is_better():
    chunk = spoken(found=verdict(2))
    attempts = Attempts(chunk, 1, Speaker())
    (first,) = attempts.add(chunk, sound())
    assert attempts.add(said(first, found=verdict(0)), sound(1)) == [] and attempts.kept is chunk
    assert torch.equal(attempts.take_wav(), sound())


@pytest.mark.parametrize(("level", "frames"), [(0.02, 40), (0.1, 120)])
def test_a_try_at_another_level_or_pace_is_tried_again_but_better_than_a_repeat(level, frames):
    speak, chunk = Speaker(), spoken(found=verdict(2))
    attempts = Attempts(chunk, 2, speak)
    (first,) = attempts.add(chunk, sound())
    (second,) = attempts.add(said(first, frames=frames), level * torch.randn(frames * FRAME_SAMPLES))
    assert second is not first
    (spliced,) = attempts.add(said(second, 700, verdict(0)), sound(1))
    assert 500 in torch.cat(spliced.codes)[:, 0].tolist()


def test_if_most_sentences_are_bad_the_chunk_is_spoken_again():
    chunk = spoken(found=verdict(0, 1, 3))
    attempts = Attempts(chunk, 2, Speaker())
    (again,) = attempts.add(chunk, sound())
    assert again.text == TEXT and again.params.seed == seed_of(chunk, 1)
    heard = Attempts(chunk, 2, Speaker(), may_restart=False)
    assert len(heard.add(chunk, sound())) == 3, "whoever has heard the beginning hears no other"
    alone = spoken(text="One apple.", found=Verdict("attention", (0,), verdict(0).passages))
    attempts = Attempts(alone, 1, Speaker())
    (again,) = attempts.add(alone, sound())
    assert attempts.add(said(again, found=alone.verdict), sound()) == [] and attempts.kept is alone


def test_an_attempt_worse_than_one_without_passages_is_followed_by_the_next():
    """The best has nothing to mend, so the chunk is spoken again, although the last attempt could be mended."""
    chunk = spoken(found=Verdict("attention", (0, 40, 80, 120)), bounds=Bounds(0, math.inf, 2.0))
    attempts = Attempts(chunk, 2, Speaker())
    silent = sound().clone()
    silent[40 * FRAME_SAMPLES : 120 * FRAME_SAMPLES] = 0
    (second,) = attempts.add(chunk, silent)
    (third,) = attempts.add(said(second, found=verdict(1), frames=4 * FRAMES), sound())
    assert attempts.flaws == [("silence",), ("again",)] and third.params.seed == seed_of(chunk, 2)
    assert attempts.add(said(third, frames=4 * FRAMES), sound()) == [] and attempts.kept is third


def test_sentences_that_were_heard_stay():
    chunk = spoken(found=verdict(2, fixed=80))
    attempts = Attempts(chunk, 1, Speaker(), may_restart=False)
    (again,) = attempts.add(chunk, sound())
    (spliced,) = attempts.add(said(again), sound(1))
    spliced.verdict = verdict()
    attempts.add(spliced, sound(seed=1))
    heard = 80 * FRAME_SAMPLES
    wav = attempts.take_wav()
    assert torch.equal(wav[:heard], sound()[:heard]) and torch.equal(wav[heard:], sound(seed=1)[heard:])


def test_a_missing_sentence_is_put_into_the_pause():
    passage = Passage((1, 2), (40, 40), (Doubt("missing", "Two", (5, 10), (40, 40)),))
    chunk = spoken(found=Verdict("attention", (0, 40, 40, 80), (passage,)))
    attempts = Attempts(chunk, 1, Speaker())
    (again,) = attempts.add(chunk, sound())
    lead = torch.cat([torch.zeros(12 * FRAME_SAMPLES), sound(1)])
    (spliced,) = attempts.add(said(again, frames=52), lead)
    codes = torch.cat(spliced.codes)[:, 0].tolist()
    assert [code for code in codes if code < 500] == list(range(160)) and codes.index(504) in range(33, 38)


def test_each_place_counts():
    assert badness(()) == 0 < badness(("cut",)) < badness(("again",)) < badness(("again", "again"))


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


SAID = "One apple is on the table. Two pears fell down. Four nuts are left."


@pytest.fixture(scope="module")
def plain(engine):
    return engine.speak(SAID, params=PARAMS)


@pytest.fixture(scope="module")
def amber(engine):
    clip = BUILT_IN_CLIPS / "amber.flac"
    return engine.encode_voice(*read_clip(clip), transcript=transcript_of(clip)[0])


@pytest.fixture
def planted(monkeypatch):
    """planted(codes, number): in this speech of the text, the sentence of that number counts as said again."""
    real, bad = ChunkCheck.verdict, []

    def judged(check, codes, ended=True):
        found = real(check, codes, ended)
        for wrong, number in bad:
            if torch.equal(codes, wrong):
                frames = found.starts[number], [*found.starts, len(codes)][number + 1]
                doubt = Doubt("again", "some words", (0, 1), (frames[0], frames[0] + 9))
                return replace(found, passages=(Passage((number, number + 1), frames, (doubt,)),))
        return found

    monkeypatch.setattr(ChunkCheck, "verdict", judged)
    return lambda codes, number: bad.append((codes, number))


def loud(wav):
    return wav[: len(wav) // 240 * 240].view(-1, 240).square().mean(1).sqrt()


def test_mended_speech_decodes_to_its_sound_and_keeps_the_rest(engine, plain, planted):
    planted(plain.codes, 1)
    mended = engine.speak(SAID, params=PARAMS)
    (chunk,) = mended.retried
    assert chunk.text == "Two pears fell down." and chunk.flaws[0] == ("again",) and chunk.kept == 2
    assert mended.complete and not mended.warnings and mended.said[0].verdict.doubts == ()
    assert not torch.equal(mended.codes, plain.codes)
    starts = plain.said[0].verdict.starts
    same = (mended.codes[: starts[1]] == plain.codes[: starts[1]]).all(1)
    assert same[:-12].all(), "up to the pause before it"
    after = len(plain.codes) - starts[2]
    assert torch.equal(mended.codes[-after + 12 :], plain.codes[-after + 12 :])
    with torch.inference_mode():
        decoded = engine.loaded.decoder.decode(mended.codes.T[None])[0]
    assert torch.allclose(decoded, mended.wav, atol=1e-5)
    assert 0.5 < float(loud(mended.wav).max() / loud(plain.wav).max()) < 2
    again = engine.speak(SAID, params=PARAMS)
    assert torch.equal(again.codes, mended.codes) and torch.equal(again.wav, mended.wav)
    assert [word.text for word in engine.words(mended)] == SAID.split()


def test_a_listener_hears_the_mended_sentence_without_a_restart(engine, plain, planted):
    planted(plain.codes, 2)
    heard, sizes = [], []
    listener = Listener(
        on_frame=lambda done, expected: sizes.append((done, sum(map(len, heard)))),
        on_audio=lambda wav: heard.append(wav.clone()),
        on_restart=lambda why: pytest.fail(why),
    )
    speech = engine.speak(SAID, params=PARAMS, listener=listener)
    assert torch.equal(torch.cat(heard), speech.wav) and speech.retried[0].kept == 2
    starts = plain.said[0].verdict.starts
    cut = (starts[2] - 12) * FRAME_SAMPLES
    assert torch.allclose(speech.wav[:cut], plain.wav[:cut], atol=1e-5)
    assert not torch.equal(speech.codes[starts[2] :], plain.codes[starts[2] :])
    before = [size for done, size in sizes if done <= len(plain.codes) - 4]
    assert before[-1] <= starts[2] * FRAME_SAMPLES, "nothing of a sentence that may be bad"
    early = [size / FRAME_SAMPLES for done, size in sizes if done <= starts[1]]
    assert max(early) > starts[1] - 30, "the first sentence is heard as it comes"


@pytest.mark.parametrize("place", [0, 1])
def test_good_sentences_are_heard_while_the_bad_one_is_spoken_again(engine, amber, planted, place):
    """In the first chunk, and in one that is checked as a whole before any of it is heard."""
    text = "Zero figs were left." * place + f"\n\n{SAID}"
    params = replace(PARAMS, paragraph_gap=0.5, chunk_seconds=20.0)
    plain = engine.speak(text, amber, params)
    assert plain.chunks == 1 + place
    chunk = plain.said[place]
    planted(plain.codes[slice(*chunk.frames)], 2)
    told = engine.speak(text, amber, params)
    heard, told_of, sizes = [], [], []
    listener = Listener(
        on_frame=lambda *_: sizes.append((len(told_of), sum(map(len, heard)))),
        on_audio=lambda wav: heard.append(wav.clone()),
        on_restart=lambda why: pytest.fail(why),
        on_chunk=lambda chunk, _: told_of.append(chunk),
    )
    speech = engine.speak(text, amber, params, listener=listener)
    assert torch.equal(torch.cat(heard), speech.wav) and torch.equal(speech.codes, told.codes)
    assert speech.retried == told.retried and [one.flaws for one in speech.retried] == [(("again",), ())]
    early = max(size for chunks, size in sizes if chunks == place)
    starts = [chunk.start + start * FRAME_SAMPLES for start in chunk.verdict.starts]
    assert starts[1] < early < starts[2], "two sentences of three, and nothing of the bad one"


def test_a_dialogue_keeps_the_mended_codes(engine, amber, planted):
    voices, scene = {"Ann": amber}, [Turn("Ann", SAID), Turn("Ann", "Bye.")]
    params = replace(PARAMS, seed=6, chunk_seconds=0.0)  # a seed of its own: nothing is kept yet
    plain = engine.speak_turns(scene, voices, params, reuse=False)
    planted(plain.codes[slice(*plain.said[0].frames)], 1)
    fresh = engine.speak_turns(scene, voices, params)
    again = engine.speak_turns(scene, voices, params)
    assert not torch.equal(fresh.codes, plain.codes) and fresh.retried and not again.retried
    assert again.reused == 2 and torch.equal(again.codes, fresh.codes) and torch.equal(again.wav, fresh.wav)


def test_a_retake_replaces_its_sentence_and_keeps_the_rest(engine):
    """Without a voice, the first chunk is the voice of the others, which stay although it changes."""
    text = f"{SAID}\n\nFive grapes are green."
    params = replace(PARAMS, paragraph_gap=0.5)
    first = engine.speak(text, params=params)
    assert first.chunks == 2
    once = engine.speak(text, params=params, retakes={1: 1})
    twice = engine.speak(text, params=params, retakes={1: 2})
    assert once.reused == 2 and not torch.equal(once.codes, twice.codes) and not torch.equal(once.codes, first.codes)
    rest = first.said[1].frames
    for speech in (once, twice):
        assert speech.spoken_again == () and speech.complete
        start = speech.said[1].frames[0]
        assert torch.equal(speech.codes[start:], first.codes[rest[0] :])
        assert torch.equal(speech.wav[speech.said[1].start :], first.wav[first.said[1].start :])
        starts = first.said[0].verdict.starts
        assert torch.equal(speech.codes[: starts[1] - 12], first.codes[: starts[1] - 12])
    again = engine.speak(text, params=params, retakes={1: 1})
    assert torch.equal(again.wav, once.wav)
    both = engine.speak(text, params=params, retakes={1: 1, 2: 1})
    start = once.said[0].verdict.starts[2] - 12
    assert torch.equal(both.codes[:start], once.codes[:start]) and not torch.equal(both.codes, once.codes)
    plain = engine.speak(text, params=params)
    assert torch.equal(plain.wav, first.wav) and plain.reused == 0, "speech without retakes is spoken anew"
    beyond = engine.speak(text, params=params, retakes={4: 1})
    assert torch.equal(beyond.wav, first.wav)
    assert beyond.warnings == ("There is no sentence 5 to take again: the text has 4.",)


def test_a_sentence_in_a_script_of_unknown_pace_is_taken_again(engine, monkeypatch):
    monkeypatch.setattr(builder, "bounds_of", lambda text: Bounds(0, math.inf, 4))
    speech = engine.speak(SAID, params=PARAMS, retakes={1: 1})
    assert speech.complete and speech.retried == () and speech.spoken_again == (), "it was asked for"


def test_a_listener_hears_the_retake_and_nothing_before_it(engine, plain):
    heard = []
    listener = Listener(on_audio=lambda wav: heard.append(wav.clone()), on_restart=lambda why: pytest.fail(why))
    speech = engine.speak(SAID, params=PARAMS, listener=listener, retakes={0: 1})
    assert torch.equal(torch.cat(heard), speech.wav) and not torch.equal(speech.codes, plain.codes)
    assert speech.spoken_again == ()


def test_a_retake_keeps_what_a_listener_heard_although_it_was_in_doubt(engine, plain, planted):
    planted(plain.codes, 2)
    heard = []
    listener = Listener(on_audio=lambda wav: heard.append(wav.clone()), on_restart=lambda why: pytest.fail(why))
    first = engine.speak(SAID, params=PARAMS, listener=listener)
    assert torch.equal(torch.cat(heard), first.wav) and not torch.equal(first.codes, plain.codes)
    again = engine.speak(SAID, params=PARAMS, listener=listener, retakes={1: 1})
    _, start, stop = first.said[0].verdict.starts
    after = len(first.codes) - stop - 12
    assert torch.equal(again.codes[: start - 12], first.codes[: start - 12])
    assert torch.equal(again.codes[-after:], first.codes[-after:]) and not torch.equal(again.codes, first.codes)
    before = (start - 24) * FRAME_SAMPLES
    assert torch.allclose(again.wav[:before], first.wav[:before], atol=1e-5)
