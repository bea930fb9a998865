"""The number of CPU threads for a small model: one during speech, restored in every thread afterwards."""

import threading

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, Engines, Listener, SamplingParams
from higgs_tts.engine.core.threads import few_threads, one_thread


@pytest.fixture
def three_threads():
    """Set a number that is neither one nor the machine's, in this thread and in later ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_new_thread(work):
    done = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    thread.join(60)
    return done[0]


def speak(on_frame=None):
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu", context=512)) as engine:
        engine.speak("Hi.", params=SamplingParams(max_frames=12), listener=Listener(on_frame=on_frame))


@pytest.mark.usefixtures("three_threads")
def test_a_small_model_speaks_with_one_thread():
    seen = []
    speak(lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {1} and torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(
    "device, talker_bytes, threads", [("cuda", 8 << 30, 1), ("cpu", 8 << 30, 3), ("cpu", 8 << 20, 1)]
)
def test_only_a_large_model_on_the_cpu_keeps_its_threads(device, talker_bytes, threads):
    with few_threads(torch.device(device), talker_bytes):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_sound_of_several_devices_is_collected_with_one_thread():
    seen = []
    cards = [Engine(EngineConfig(model=str(EMBEDDED), device="cpu", context=512)) for _ in range(2)]
    with cards[0], cards[1]:
        Engines(cards).speak(
            "Hi.",
            params=SamplingParams(max_frames=12),
            listener=Listener(on_frame=lambda *_: seen.append(torch.get_num_threads())),
        )
    assert set(seen) == {1} and torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_puts_the_threads_back():
    with pytest.raises(KeyboardInterrupt):
        speak(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_inner_call_leaves_the_limit_of_the_outer_one():
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("first_out", [0, 1])
def test_two_overlapping_calls_restore_the_threads(first_out):
    """Two overlapping calls, each in a thread of its own, whichever ends first."""
    inside, leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    during, after = [0, 0], [0, 0]

    def call(number):
        with one_thread():
            inside[number].set()
            assert leave[number].wait(60)
            during[number] = torch.get_num_threads()
        after[number] = torch.get_num_threads()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        assert inside[number].wait(60)
    for number in (first_out, 1 - first_out):
        leave[number].set()
        threads[number].join(60)
    assert during == [1, 1] and after == [3, 3]
    assert torch.get_num_threads() == 3 and in_new_thread(torch.get_num_threads) == 3


@pytest.mark.usefixtures("three_threads")
def test_two_engines_speaking_at_once_restore_the_threads():
    threads = [threading.Thread(target=speak) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert torch.get_num_threads() == 3 and in_new_thread(torch.get_num_threads) == 3
