"""Several GPUs that speak together: the codes of one, independence of failures, and all memory freed."""

import gc
import threading

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Engines, Listener, SamplingParams, Turn, Voice
from higgs_tts.engine.engines import loaded_model

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
CARDS = range(torch.cuda.device_count())
TEXT = " ".join(f"This is sentence number {number} of forty." for number in range(1, 41))
PARAMS = SamplingParams(seed=5, max_frames=90, chunk_seconds=4, retries=0)
TURNS = [Turn(("Ann", "Bob")[number % 2], f"This is what turn number {number} says.") for number in range(30)]


def a_voice():
    codes = torch.randint(0, 1024, (60, 8), generator=torch.Generator().manual_seed(1))
    return Voice(codes, "A reference.", "somebody")


def free_bytes():
    """Return each GPU's free bytes, after emptying torch's cache."""
    gc.collect()
    for card in CARDS:
        torch.cuda.synchronize(card)
    torch.cuda.empty_cache()
    return [torch.cuda.mem_get_info(card)[0] for card in CARDS]


@pytest.fixture(scope="module")
def folder(folders):
    return str(folders["v3"])


@pytest.fixture
def cards(folder):
    """An open engine on each GPU. Permanent allocations are made first; everything else is freed after."""

    def made():
        return [Engine(EngineConfig(folder, device=f"cuda:{card}", context=1024)) for card in CARDS]

    def use(engines):
        for engine in engines:
            engine.open()

    use(warm := made())
    Engines(warm).speak(TEXT, a_voice(), PARAMS)
    for engine in warm:
        engine.close()
    before = free_bytes()
    use(engines := made())
    yield engines
    for engine in engines:
        engine.close()
    assert free_bytes() == before


@pytest.mark.parametrize("voice", [None, a_voice()], ids=["no voice", "a voice"])
def test_several_gpus_give_the_codes_of_one(cards, voice):
    alone, speech = (one.speak(TEXT, voice, PARAMS) for one in (cards[0], Engines(cards)))
    assert torch.equal(speech.codes, alone.codes) and torch.allclose(speech.wav, alone.wav, atol=1e-3)
    assert speech.warnings == alone.warnings and f"{len(CARDS)} x {torch.cuda.get_device_name(0)}: " in speech.how
    assert cards[0].planned_bytes < speech.peak_bytes


def test_a_dialogue_on_several_gpus_equals_that_of_one(cards):
    alone = cards[1].speak_turns(TURNS, {"Ann": a_voice()}, PARAMS)
    both = [Engines(cards).speak_turns(TURNS, {"Ann": a_voice()}, PARAMS) for _ in range(2)]
    for speech in both:
        assert torch.equal(speech.codes, alone.codes) and torch.allclose(speech.wav, alone.wav, atol=1e-3)
    assert [speech.reused for speech in both] == [0, len(TURNS)]


@pytest.mark.parametrize("who", [0, 1])
def test_a_lost_gpu_loses_no_speech(cards, who):
    expected, closing = cards[0].speak(TEXT, a_voice(), PARAMS), threading.Thread(target=cards[who].close)

    def take_away(done, expected):
        if done > 500 and not cards[who].is_closing:
            closing.start()
            while not cards[who].is_closing:
                pass

    speech = Engines(cards).speak(TEXT, a_voice(), PARAMS, listener=Listener(on_frame=take_away))
    closing.join()
    assert torch.equal(speech.codes, expected.codes) and not cards[who].opened
    assert f"GPU {who} " in speech.warnings[-1] and "unloaded" in speech.warnings[-1]


@pytest.mark.parametrize("left", [300 << 20, 1200 << 20], ids=["none to spare", "a few rows"])
def test_a_gpu_short_of_memory_is_used_less_or_not_at_all(cards, left):
    expected = cards[0].speak(TEXT, a_voice(), PARAMS)
    hog = torch.empty(free_bytes()[1] - left, dtype=torch.uint8, device="cuda:1")
    speech = Engines(cards).speak(TEXT, a_voice(), PARAMS)
    assert torch.equal(speech.codes, expected.codes)
    assert ("GPU 1 " in "".join(speech.warnings)) == (left < loaded_model.RESERVE)
    del hog


def test_a_cancel_stops_all_gpus(cards):
    class Stop(Exception):
        pass

    def cancel(done, expected):
        if done > 500:
            raise Stop

    expected = cards[0].speak(TEXT, a_voice(), PARAMS)
    with pytest.raises(Stop):
        Engines(cards).speak(TEXT, a_voice(), PARAMS, listener=Listener(on_frame=cancel))
    assert torch.equal(Engines(cards).speak(TEXT, a_voice(), PARAMS).codes, expected.codes)
