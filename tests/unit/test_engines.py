"""Several engines that speak together: the same codes as one, whatever happens to the others. CPUs stand for GPUs."""

import threading
import time
from contextlib import ExitStack

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Engines, HiggsError, Listener, SamplingParams, Turn, Voice
from higgs_tts.engine.engines import loaded_model
from higgs_tts.engine.engines.loaded_model import LoadedModel

PARAMS = SamplingParams(seed=3, max_frames=20, chunk_seconds=3, retries=0)
TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five six".split())
TURNS = [Turn(("Ann", "Bob")[number % 2], f"This is turn number {number}.") for number in range(5)]


def a_voice():
    codes = torch.randint(0, 1024, (20, 8), generator=torch.Generator().manual_seed(1))
    return Voice(codes, "A reference.", "somebody")


@pytest.fixture(scope="module")
def folder(written):
    return str(written["v3"])


@pytest.fixture
def cards(folder):
    """cards(n) -> so many open engines."""
    with ExitStack() as stack:
        config = EngineConfig(folder, device="cpu", context=512)
        yield lambda count=2: [stack.enter_context(Engine(config)) for _ in range(count)]


@pytest.fixture(scope="module")
def alone(folder):
    """One engine's speech, with a voice and without."""
    with Engine(EngineConfig(model=folder, device="cpu", context=512)) as engine:
        return {voice is None: engine.speak(TEXT, voice, PARAMS) for voice in (None, a_voice())}


@pytest.fixture
def steps(before_steps):
    """steps(when): call when(engine's talker, number of its steps so far) before each step."""
    counts = {}

    def plant(when):
        def planted(backend):
            counts[backend.talker] = counts.get(backend.talker, 0) + 1
            when(backend.talker, counts[backend.talker])

        before_steps(planted)
        return counts

    return plant


def same(one, other):
    return torch.equal(one.codes, other.codes) and torch.allclose(one.wav, other.wav, atol=1e-5)


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_devices_give_the_codes_of_one(cards, alone, steps, count, voice):
    engines, seen = cards(count), []
    counts = steps(lambda talker, number: None)
    speech = Engines(engines).speak(TEXT, voice, PARAMS, listener=Listener(on_frame=lambda *now: seen.append(now)))
    expected = alone[voice is None]
    assert same(speech, expected) and speech.warnings == expected.warnings and speech.chunks == 6
    assert len(counts) == count and f"{count} x CPU: " in speech.how
    assert all(done <= total for done, total in seen) and seen[-1][0] == speech.frames
    assert speech.elapsed > 0 and speech.turns == expected.turns


def test_decoding_waits_while_a_device_gets_its_runner(cards, alone, monkeypatch, steps):
    made, making, seen, make = [], threading.Lock(), [], loaded_model.open_runner

    def look(*given):
        assert making.acquire(blocking=False), "two devices get their runners at once"
        try:
            time.sleep(0.05)
            made.append(make(*given))
            return made[-1]
        finally:
            making.release()

    monkeypatch.setattr(loaded_model, "open_runner", look)
    engines = cards(3)
    made.clear()
    steps(lambda talker, number: seen.append(len(made)))
    assert same(Engines(engines).speak(TEXT, a_voice(), PARAMS), alone[False]) and set(seen) == {3}


def test_two_calls_at_once_both_end(cards, alone):
    engines, said = Engines(cards()), []
    threads = [
        threading.Thread(target=lambda: said.append(engines.speak(TEXT, a_voice(), PARAMS)), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(said) == 2 and all(same(speech, alone[False]) for speech in said)


def test_a_single_chunk_uses_one_card(cards, steps):
    engines = cards()
    counts = steps(lambda talker, number: None)
    speech = Engines(engines).speak("Hello.", a_voice(), PARAMS)
    assert list(counts) == [engines[0].loaded.talker]
    assert torch.equal(speech.codes, engines[1].speak("Hello.", a_voice(), PARAMS).codes)


def test_a_dialogue_on_several_devices_equals_that_of_one_and_is_kept(cards):
    engines = cards()
    expected = engines[1].speak_turns(TURNS, {"Ann": a_voice()}, PARAMS)
    together = Engines(engines)
    first, again = (together.speak_turns(TURNS, {"Ann": a_voice()}, PARAMS) for _ in range(2))
    assert same(first, expected) and first.reused == 0
    assert same(again, expected) and again.reused == 5
    edited = together.speak_turns([*TURNS[:2], Turn("Ann", "Another."), *TURNS[2:]], {"Ann": a_voice()}, PARAMS)
    assert edited.reused == 5 and edited.chunks == 6


def test_bad_takes_are_spoken_again(cards):
    text = " ".join(f"Here is number {word}." for word in "one two three four".split())
    engines, params = cards(), SamplingParams(seed=5, max_frames=40, chunk_seconds=1.5, retries=1)
    expected = engines[0].speak(text, a_voice(), params)
    speech = Engines(engines).speak(text, a_voice(), params)
    assert expected.spoken_again and speech.retried == expected.retried and same(speech, expected)


def test_a_listener_hears_all_sound_once_and_in_order(cards, alone):
    heard = []
    speech = Engines(cards()).speak(
        TEXT, a_voice(), PARAMS, listener=Listener(on_audio=lambda wav: heard.append(wav.clone()))
    )
    assert torch.equal(torch.cat(heard), speech.wav) and same(speech, alone[False]) and len(heard) > 3


@pytest.mark.parametrize("who", [0, 1])
def test_a_card_out_of_memory_loses_no_speech(cards, alone, steps, who):
    engines = cards()

    def fail(talker, number):
        if talker is engines[who].loaded.talker and number == 9:
            raise torch.cuda.OutOfMemoryError("planted")

    steps(fail)
    speech = Engines(engines).speak(TEXT, a_voice(), PARAMS)
    assert same(speech, alone[False])
    (warning,) = set(speech.warnings) - set(alone[False].warnings)
    assert "CPU ran out of memory" in warning and all(engine.opened for engine in engines)


@pytest.mark.parametrize("who", [0, 1])
def test_a_lost_card_loses_no_speech(cards, alone, steps, who):
    engines = cards()
    closing = threading.Thread(target=engines[who].close)

    def close(talker, number):
        loaded = engines[who].loaded
        if loaded is not None and talker is loaded.talker and number == 9:
            closing.start()
            while not engines[who].is_closing:
                pass

    steps(close)
    speech = Engines(engines).speak(TEXT, a_voice(), PARAMS)
    closing.join()
    assert same(speech, alone[False]) and [engine.opened for engine in engines] == [who == 1, who == 0]
    (warning,) = set(speech.warnings) - set(alone[False].warnings)
    assert "CPU was unloaded" in warning
    assert same(Engines(engines).speak(TEXT, a_voice(), PARAMS), alone[False]), "with who is left"


@pytest.mark.parametrize("text", ["Hello.", TEXT], ids=["one chunk", "the first, which is the voice of all"])
def test_a_lost_card_s_only_chunk_goes_to_another_card(cards, steps, text):
    engines = cards()
    expected = engines[1].speak(text, params=PARAMS)

    def fail(talker, number):
        if talker is engines[0].loaded.talker:
            raise torch.cuda.OutOfMemoryError("planted")

    steps(fail)
    speech = Engines(engines).speak(text, params=PARAMS)
    assert same(speech, expected) and "ran out of memory" in "".join(speech.warnings)


def test_losing_all_cards_raises_the_last_one_s_error(cards, steps):
    engines = cards()

    def fail(talker, number):
        raise torch.cuda.OutOfMemoryError("planted")

    steps(fail)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        Engines(engines).speak(TEXT, a_voice(), PARAMS)
    for engine in engines:
        engine.close()
    with pytest.raises(HiggsError, match="not open"):
        Engines(engines).speak(TEXT, a_voice(), PARAMS)


def test_errors_that_are_not_a_card_s_fault_end_the_speech(cards, monkeypatch):
    engines = cards()
    with torch.inference_mode():
        engines[1].loaded.talker.norm.fill_(float("nan"))
    with pytest.raises(HiggsError, match="not numbers"):
        Engines(engines).speak(TEXT, a_voice(), PARAMS)

    def broken(loaded, count, *rest):
        raise ValueError("a mistake")

    monkeypatch.setattr(LoadedModel, "runner_for", broken)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    with pytest.raises(ValueError, match="a mistake"):
        Engines(engines).speak(TEXT, a_voice(), PARAMS)


def test_a_cancel_stops_all_engines_and_leaves_them_usable(cards, alone):
    class Stop(Exception):
        pass

    def cancel(done, expected):
        if done > 10:
            raise Stop

    engines, before = cards(), threading.active_count()
    with pytest.raises(Stop):
        Engines(engines).speak(TEXT, a_voice(), PARAMS, listener=Listener(on_frame=cancel))
    assert threading.active_count() == before, "no thread goes on"
    assert same(Engines(engines).speak(TEXT, a_voice(), PARAMS), alone[False])


def test_closed_engines_are_not_used(cards, alone):
    engines = cards()
    engines[0].close()
    assert same(Engines(engines).speak(TEXT, a_voice(), PARAMS), alone[False])
