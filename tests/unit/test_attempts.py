"""The guard: bad attempts, their repetition, and the listener's view."""

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, Listener, SamplingParams, Turn, Voice
from higgs_tts.engine.audio.assembly import FADE, Assembly
from higgs_tts.engine.audio.levels import is_clipped, is_near_silent, longest_silence, spoken_part
from higgs_tts.engine.core.sequence import Bounds, Sequence
from higgs_tts.engine.prompt.lengths import bounds_of
from higgs_tts.engine.speech import attempts
from higgs_tts.engine.speech.attempts import Attempts, another, judge, repeats
from higgs_tts.tests.watched import ending

TEXT = "The first sentence is short. The second one says a little more than that. And the third one ends it."
PARAMS = SamplingParams(
    seed=5, max_frames=250, chunk_seconds=3, check=False
)  # chunks so short are cut inside sentences


def noise(seconds, level=0.1, seed=0):
    return level * torch.randn(round(seconds * SAMPLE_RATE), generator=torch.Generator().manual_seed(seed))


def silence(seconds):
    return torch.zeros(round(seconds * SAMPLE_RATE))


def said(frames=100, ended=True, expected=100, bounds=None, codes=None):
    sequence = Sequence([1], text="Some words.", expected=expected, bounds=bounds or Bounds(40, 300, 2.0))
    codes = torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(1)) if codes is None else codes
    sequence.codes, sequence.num_frames, sequence.finished, sequence.ended = [codes], len(codes), True, ended
    return sequence


def never(*passage):
    pytest.fail("no sentence is spoken by itself")


WAV = noise(4)


@pytest.mark.parametrize(
    ("sequence", "wav", "flaws"),
    [
        (said(), WAV, ()),
        (said(frames=250, ended=False), WAV, ("limit",)),
        (said(frames=50, ended=False), WAV, ()),  # the text was still going on
        (said(frames=301), WAV, ("long",)),
        (said(frames=39), WAV, ("short",)),
        (said(codes=torch.randint(0, 1024, (9, 8)).repeat(12, 1)), WAV, ("repeat",)),
        (said(), torch.cat([noise(1), silence(2.1), noise(1)]), ("silence",)),
        (said(), torch.cat([noise(2), silence(2.1)]), ("silence",)),
        (said(), torch.cat([noise(2), noise(2.1, 0.0005)]), ("silence",)),
        (said(), torch.cat([noise(2), silence(1.9)]), ()),
        (said(), noise(4, 0.0005), ("silence", "level")),
        (said(), noise(4, 2.0).clamp(-1, 1), ("level",)),
        (said(bounds=Bounds()), torch.cat([noise(1), silence(9), noise(1)]), ()),
    ],
)
def test_flaws_of_a_take_are_found(sequence, wav, flaws):
    assert judge(sequence, wav) == flaws


def test_looping_codes_are_told_from_other_codes():
    draw = torch.Generator().manual_seed(2)
    for _ in range(20):
        frames, lag = (int(torch.randint(low, high, (1,), generator=draw)) for low, high in ((80, 700), (1, 100)))
        codes = torch.randint(0, 1024, (frames, 8), generator=draw)
        assert not repeats([codes]) and not repeats([])
        round_and_round = torch.randint(0, 1024, (lag, 8), generator=draw).repeat(1 + 180 // lag, 1)
        assert repeats([codes, round_and_round]), lag
    still = torch.cat([codes[:100], codes[:1].repeat(50, 1), codes[100:200]])
    assert not repeats([still]), "two seconds of the same are a pause"


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("They laughed so hard that they could not breathe.", (50, 170), (10, 320)),
        ("Yes.", (3, 50), (80,)),
        ("<|prosody:speed_very_slow|>They laughed so hard that they could not breathe.", (60, 320), (500,)),
        ("Я не знаю, что мне теперь делать с этим.", (20, 200), (400,)),
        ("他们笑得喘不过气来。", (15, 200), (400,)),
        ("<|sfx:laughter|>Haha, they laughed so hard.", (30, 200), (400,)),
    ],
)
def test_bounds_follow_the_text(text, good, bad):
    shortest, longest, _ = bounds_of(text)
    assert all(shortest <= frames <= longest for frames in good)
    assert not any(shortest <= frames <= longest for frames in bad)


@pytest.mark.parametrize(
    "text", ["Yes. " + "-" * 60, "Aaaa" + " " * 100 + "b", "[]{}()" * 20 + " Hi", "1,000,000,000,000"]
)
def test_text_that_may_be_silent_allows_short_speech(text):
    assert bounds_of(text).shortest < 16


def test_unknown_scripts_have_no_bounds_but_silence():
    assert bounds_of("हम नहीं जानते कि अब क्या करना है।") == Bounds(0, math.inf, 2.0)
    assert bounds_of("Wait <|prosody:long_pause|> for it.").silence > 4


def test_the_best_take_is_kept_and_retries_are_bounded():
    asked = said()
    tried = Attempts(asked, 2, never)
    (first,) = tried.add(asked, silence(4))
    assert first.params.seed == another(asked, 1).params.seed != asked.params.seed and not first.finished
    good_enough = torch.cat([noise(2), silence(2.1)])
    (second,) = tried.add(said(), good_enough)
    assert second.params.seed not in (first.params.seed, asked.params.seed)
    assert tried.add(said(), silence(4)) == []
    assert tried.flaws == [("silence", "level"), ("silence",), ("silence", "level")]
    assert tried.number == 2 and torch.equal(tried.take_wav(), good_enough)
    done = Attempts(asked, 2, never)
    assert done.add(asked, WAV) == [] and done.kept is asked and done.flaws == [()]
    unjudged = Attempts(asked, 0, never, judged=False)
    assert unjudged.add(asked, silence(4)) == [] and not any(unjudged.flaws)


@contextlib.contextmanager
def opened_with_ends(folder, batch=0):
    """A tiny engine. Its sequences end after 20 to 32 frames, at others with each seed and number."""
    with (
        Engine(EngineConfig(str(folder), device="cpu", context=512, batch=batch)) as opened,
        ending(opened.loaded.talker, lambda one: 20 + (one.round_keys[:, 0, 0] + 5 * one.sequence_index) % 13),
    ):
        yield opened


@pytest.fixture(scope="module")
def engine(written):
    with opened_with_ends(written["v3"]) as opened:
        yield opened


@pytest.fixture
def bad(monkeypatch):
    """bad(*seeds): attempts with these seeds count as silent."""
    seeds = set()
    real = attempts.judge

    def judging(sequence, wav):
        return ("silence",) if sequence.params.seed in seeds else real(sequence, wav)

    monkeypatch.setattr(attempts, "judge", judging)
    return lambda *more: seeds.update(more)


def next_seed(seed, number=1):
    return another(Sequence([1], params=SamplingParams(seed=seed)), number).params.seed


def test_takes_without_flaws_are_not_retried():
    text = "One apple is here. Two apples are there."
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        guarded, plain = (opened.speak(text, params=replace(PARAMS, chunk_seconds=2, retries=most)) for most in (2, 0))
    assert guarded.chunks == 2
    assert guarded.retried == () and torch.equal(guarded.codes, plain.codes) and torch.equal(guarded.wav, plain.wav)


def test_a_bad_first_chunk_is_replaced_by_the_next_seed_s(engine, bad):
    other = engine.speak("The first sentence is short.", params=replace(PARAMS, seed=next_seed(PARAMS.seed)))
    bad(PARAMS.seed)
    speech = engine.speak("The first sentence is short.", params=PARAMS)
    assert torch.equal(speech.codes, other.codes) and torch.equal(speech.wav, other.wav)
    (chunk,) = speech.retried
    assert (chunk.chunk, chunk.flaws, chunk.kept) == (1, (("silence",), ()), 2)
    assert str(chunk) == 'chunk 1, "The first sentence is short.": it fell silent; kept attempt 2 of 2'
    assert speech.complete and not speech.warnings


def test_lasting_flaws_are_reported_and_greedy_speech_is_not_retried(engine, bad):
    bad(PARAMS.seed, next_seed(PARAMS.seed), next_seed(PARAMS.seed, 2))
    speech = engine.speak("The first sentence is short.", params=PARAMS)
    assert speech.retried[0].kept == 1 and len(speech.retried[0].flaws) == 3
    greedy = engine.speak("The first sentence is short.", params=replace(PARAMS, temperature=0.0))
    assert len(greedy.retried[0].flaws) == 1
    for one in (speech, greedy):
        assert [*map(str, one.doubts)] == ['At 0:00.0, the chunk "The first sentence is short." falls silent.']
    assert engine.speak("The first sentence is short.", params=replace(PARAMS, retries=0)).retried == ()


def listened(engine, **params):
    """Return (speech, sound since the last restart, restarts)."""
    heard, restarts = [], []

    def restart(why):
        assert why == "it fell silent"
        restarts.append(sum(map(len, heard)))
        heard.clear()

    speech = engine.speak(
        TEXT,
        params=replace(PARAMS, **params),
        listener=Listener(on_audio=lambda wav: heard.append(wav.clone()), on_restart=restart),
    )
    return speech, torch.cat(heard), restarts


def test_a_listener_restarts_a_bad_first_chunk_and_hears_the_result(engine, bad):
    bad(PARAMS.seed)
    silent = engine.speak(TEXT, params=PARAMS)
    speech, heard, restarts = listened(engine)
    assert len(silent.retried) == silent.chunks == 3, "all chunks have that seed"
    assert len(restarts) == 1 and restarts[0] > 960
    assert torch.equal(speech.codes, silent.codes) and torch.equal(heard, speech.wav)
    assert torch.allclose(speech.wav, silent.wav, atol=1e-5)
    assert speech.retried == silent.retried
    sure, heard, restarts = listened(engine, seed=PARAMS.seed + 1)
    assert not restarts and not sure.retried and torch.equal(heard, sure.wav)


def test_a_listener_costs_work_only_for_new_sound(engine, monkeypatch):
    streamed, stream = [], Assembly.stream
    monkeypatch.setattr(Assembly, "stream", lambda self, wav: streamed.append(len(wav)) or stream(self, wav))
    steps = []
    engine.speak(
        TEXT,
        params=PARAMS,
        listener=Listener(on_audio=lambda wav: None, on_frame=lambda done, expected: steps.append(done)),
    )
    assert 3 < len(streamed) == len(set(streamed)) < len(steps) / 4


def test_heard_sound_is_kept_if_a_listener_cannot_restart(engine, bad):
    bad(PARAMS.seed)
    heard = []
    speech = engine.speak(TEXT, params=PARAMS, listener=Listener(on_audio=lambda wav: heard.append(wav.clone())))
    first, *others = speech.retried
    assert len(first.flaws) == 1 and all(chunk.kept == 2 for chunk in others) and len(others) == 2
    assert torch.equal(torch.cat(heard), speech.wav)


def test_a_bad_take_that_was_heard_is_not_reused(engine, written, bad):
    scene = [Turn("Ann", "One apple is here."), Turn("Ann", "Two apples.")]
    codes = torch.randint(0, 1024, (40, 8), generator=torch.Generator().manual_seed(1))
    voices = {"Ann": Voice(codes, "A reference.", "Ann")}
    bad(PARAMS.seed)
    fresh = engine.speak_turns(scene, voices, PARAMS, reuse=False)
    with opened_with_ends(written["v3"]) as opened:
        opened.speak_turns(scene, voices, PARAMS, listener=Listener(on_audio=lambda wav: None))
        later = opened.speak_turns(scene, voices, PARAMS)
        again = opened.speak_turns(scene, voices, PARAMS)
    assert later.reused == 1 and again.reused == 2
    assert torch.equal(later.codes, fresh.codes) and torch.equal(again.codes, fresh.codes)


@pytest.mark.parametrize("batch", [1, 2, 0])
def test_a_take_does_not_depend_on_the_batch_size(engine, written, bad, batch):
    codes = torch.randint(0, 1024, (2, 40, 8), generator=torch.Generator().manual_seed(1))
    voices = {name: Voice(one, "A reference.", name) for name, one in zip(("Ann", "Bob"), codes, strict=True)}
    scene = [Turn("Ann", "One apple is here."), Turn("Bob", "Two apples.", seed=9), Turn("Ann", "Three of them.")]
    bad(PARAMS.seed)
    with opened_with_ends(written["v3"], batch) as opened:
        speech = opened.speak_turns(scene, voices, PARAMS)
        again = opened.speak_turns(scene, voices, PARAMS)
    whole = engine.speak_turns(scene, voices, PARAMS, reuse=False)
    assert torch.equal(speech.codes, whole.codes) and torch.equal(speech.wav, whole.wav)
    assert [chunk.chunk for chunk in speech.retried] == [1, 3]
    assert again.reused == 3 and torch.equal(again.wav, speech.wav), "what is kept is the attempt that was heard"


def test_speech_that_does_not_end_is_spoken_again(written):
    """Through the whole path: the first attempt never ends, the second does."""
    keys = []

    def last(sampler):
        keys.append(sampler.round_keys[0].tolist())
        return 1000 if keys[-1] == keys[0] else 40

    with (
        Engine(EngineConfig(model=str(written["v3"]), device="cpu", context=512)) as opened,
        ending(opened.loaded.talker, last),
    ):
        speech = opened.speak("A few words.", params=SamplingParams(seed=3, max_frames=90))
    assert "limit" in speech.retried[0].flaws[0] and "limit" not in speech.retried[0].flaws[1]
    assert speech.complete and speech.frames < 60


def test_silence_and_speech_are_found_by_level():
    wav = torch.cat([silence(0.5), noise(1), silence(0.7), noise(1), silence(0.3)])
    assert longest_silence(wav) == pytest.approx(0.7, abs=0.02) and longest_silence(torch.empty(0)) == 0
    start, stop = spoken_part(wav)
    assert start == pytest.approx(0.45 * SAMPLE_RATE, abs=480) and stop == pytest.approx(3.25 * SAMPLE_RATE, abs=480)
    assert spoken_part(silence(1)) is None and is_near_silent(silence(1)) and is_near_silent(torch.empty(0))
    assert not is_near_silent(wav) and not is_clipped(wav)


@pytest.mark.parametrize("ends", [None, 0.0])
@pytest.mark.parametrize("gap", [None, 0.0, 0.3])
def test_joins_have_the_requested_gap_and_no_step(gap, ends):
    loud, cut = torch.cat([silence(0.4), noise(1), silence(0.4)]), 0.5 + noise(1)
    heard = []
    assembly = Assembly([ends, gap, gap, ends], heard.append)
    for wav in (loud, cut, loud):
        for stop in range(0, len(wav), 4800):
            assembly.stream(wav[:stop])
        assembly.append(wav)
    whole = assembly.finish()
    assert torch.equal(torch.cat(heard), whole)
    between = [start - stop for (_, stop), (start, _) in zip(assembly.spans, assembly.spans[1:], strict=False)]
    assert between == [round((gap or 0) * SAMPLE_RATE)] * 2
    trimmed = [stop - start for start, stop in assembly.spans]
    edge = 0.05 * SAMPLE_RATE
    kept = 0.4 * SAMPLE_RATE if ends is None else edge
    inner = 0.4 * SAMPLE_RATE if gap is None else edge
    assert trimmed == pytest.approx([SAMPLE_RATE + kept + inner, SAMPLE_RATE, SAMPLE_RATE + inner + kept], abs=480)
    for _, stop in assembly.spans[:-1]:
        steps = whole[stop - FADE : stop + FADE].diff().abs()
        assert steps[FADE - 2 : FADE + 1].max() < 0.05, "a sound of half of full scale meets silence without a step"


def test_streaming_a_long_silence_takes_little_memory():
    heard = []
    assembly = Assembly([None, 3600.0, None], heard.append)
    assembly.append(noise(1))
    assembly.stream(noise(1))
    assert sum(map(len, heard)) >= 3601 * SAMPLE_RATE
    assert max(wav.untyped_storage().nbytes() for wav in heard) < 1 << 20
