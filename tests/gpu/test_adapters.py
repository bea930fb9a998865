"""LoRAs on the GPU: merging during upload equals merging before, and leaves nothing behind."""

import queue

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Adapter, Engine, EngineConfig, SamplingParams
from higgs_tts.engine.serve import speaker
from higgs_tts.tests.device_memory import free_bytes
from higgs_tts.tests.peft_files import merged_folder, write_adapter

PARAMS = SamplingParams(seed=1, max_frames=60, retries=0)
SWAPS = 50


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(adapter, another, the embedded checkpoint merged with the first)."""
    root = tmp_path_factory.mktemp("adapters")
    with torch.inference_mode(False):
        merged = write_adapter(EMBEDDED, root / "one", "plain")
        write_adapter(EMBEDDED, root / "two", "dora", seed=1)
        return root / "one", root / "two", merged_folder(EMBEDDED, root / "merged", merged)


def engine_of(*adapters, folder=EMBEDDED, dtype="bf16"):
    return Engine(EngineConfig(str(folder), device="cuda:0", dtype=dtype, context=1024, adapters=adapters))


def say(engine):
    with engine:
        return engine.speak("Good morning.", params=PARAMS)


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
def test_base_with_adapter_gives_the_merged_checkpoint_s_codes(folders, dtype):
    one, _, merged = folders
    with engine_of(Adapter(str(one)), dtype=dtype) as engine, engine_of(folder=merged, dtype=dtype) as expected:
        talkers = engine.loaded.talker, expected.loaded.talker
        for a, b in zip(*(talker.tensors() for talker in talkers), strict=True):
            if a is talkers[0].scratch:
                continue
            if dtype == "fp32":
                torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
            else:  # merged on a CPU and on a GPU, a few sums round to the other side
                assert a.shape == b.shape and float((a == b).float().mean()) > 0.98
    assert torch.equal(say(engine_of(Adapter(str(one), 0.0), dtype=dtype)).codes, say(engine_of(dtype=dtype)).codes)


def test_fifty_adapter_swaps_leak_nothing_and_change_no_sound(folders):
    one, two, _ = folders
    choices = [(), (Adapter(str(one)),), (Adapter(str(two), 0.5),), (Adapter(str(one)), Adapter(str(two), 0.5))]
    heard = [say(engine_of(*chosen)) for chosen in choices]
    assert len({tuple(speech.codes.flatten().tolist()) for speech in heard}) == len(choices)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for swap in range(SWAPS):
        engine = engine_of(*choices[swap % len(choices)])
        before = torch.cuda.mem_get_info()[0]
        with engine:
            taken = before - torch.cuda.mem_get_info()[0]
            assert abs(taken - engine.planned_bytes) < 150 << 20  # graph, prefill and codec scratch
            speech = engine.speak("Good morning.", params=PARAMS)
        expected = heard[swap % len(choices)]
        assert torch.equal(speech.codes, expected.codes) and torch.equal(speech.wav, expected.wav)
        assert torch.cuda.mem_get_info()[0] == free, f"after {swap + 1} swaps"


def test_a_server_speaks_with_each_adapter_as_if_it_were_alone(folders, monkeypatch):
    """60 jobs over two adapters and none, in turns; then the memory is as it was."""
    one, two, _ = folders
    monkeypatch.setattr(speaker, "TURN", 0.2)
    engines = {"": engine_of(), "one": engine_of(Adapter(str(one))), "two": engine_of(Adapter(str(two)))}

    def heard(thread, *asked):
        """Return the codes of jobs (adapter, seed) that were added at once."""
        ends = {what: queue.Queue() for what in asked}
        for (adapter, seed), end in ends.items():
            params = SamplingParams(seed=seed, max_frames=60, retries=0)
            thread.speak(speaker.SpeechJob("Good morning.", end.put, params=params, adapter=adapter))
        return {what: end.get(timeout=120)().codes for what, end in ends.items()}

    alone = {}
    for name, engine in engines.items():
        with engine:
            thread = speaker.SpeakerThread(engine)
            for seed in range(3):
                alone[name, seed] = heard(thread, ("", seed))["", seed]
            thread.close()
    free = free_bytes()
    with engines[""]:
        thread = speaker.SpeakerThread(engines[""], adapted={name: engines[name] for name in ("one", "two")})
        for _ in range(20):
            for what, codes in heard(thread, *alone).items():
                assert torch.equal(codes, alone[what]), what
            assert sum(engine.opened for engine in engines.values()) == 1
        thread.close()
        assert thread.changes >= 40
    assert free_bytes() == free
